"use strict";
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const templates = read("templates"), figures = read("figures");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 560px)");
  const config = {
    displaylogo: false, responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  };
  const theme = () => templates[dark.matches ? "dark" : "light"];
  // On paper there is no screen to be as wide as: A4 landscape less its margins, at 96 dots per inch.
  const PAPER = 1020;

  function draw(figure) {
    const box = document.getElementById(figure.id);
    const layout = Object.assign({}, figure.layout, { template: theme() });
    if (narrow.matches) layout.title = Object.assign({}, layout.title, { font: { size: 11 } });
    Plotly.newPlot(box, figure.data, layout, Object.assign({}, config, { displayModeBar: narrow.matches ? false : undefined }));
  }

  function restyle(change) {
    for (const figure of figures) {
      const box = document.getElementById(figure.id);
      if (box.data) Plotly.relayout(box, change);
    }
  }

  // A figure that is folded away has no width to be drawn for: it is drawn when it is opened.
  const folded = (figure) => document.getElementById(figure.id).closest("details:not([open])");
  figures.filter((figure) => !folded(figure)).forEach(draw);
  for (const drawer of document.querySelectorAll("details")) {
    drawer.addEventListener("toggle", () => {
      if (!drawer.open) return;
      for (const figure of figures) {
        const box = document.getElementById(figure.id);
        if (drawer.contains(box) && !box.data) draw(figure);
      }
    });
  }
  dark.addEventListener("change", () => restyle({ template: theme() }));
  window.addEventListener("beforeprint", () => restyle({ template: templates.light, autosize: false, width: PAPER }));
  window.addEventListener("afterprint", () => {
    restyle({ template: theme(), autosize: true, width: null });
    for (const figure of figures) {
      const box = document.getElementById(figure.id);
      if (box.data) Plotly.Plots.resize(box);
    }
  });
})();
