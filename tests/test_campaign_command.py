"""``python -m hta_dsv4.capture.campaign``: what is refused before a GPU works, and what is not lost of a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("torch")

from hta_dsv4.capture import campaign
from hta_dsv4.capture.command import CaptureOptions
from hta_dsv4.capture.profiler import CaptureResult
from hta_dsv4.capture.tracefile import Summary
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import Manifest, Timing, write_manifest

OLD = '[[trace]]\ntrace = "mma.trace.json.gz"\nvariant = "mma"\n'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--only nonsense", "--only nonsense: choose among original"),
        ("--config nonsense", "--config nonsense"),
        ("--baseline 0", "--baseline 0"),
        ("--baseline -1", "--baseline -1"),
        ("--budget nan", "--budget nan: give seconds above 0"),
        ("--budget inf", "--budget inf: give seconds above 0"),
        ("--budget -5", "--budget -5.0: give seconds above 0"),
    ],
)
def test_what_no_row_can_be_captured_with(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row, model or number that cannot be -> one line, exit 2, and the folder's manifest stays."""
    (tmp_path / "manifest.toml").write_text(OLD)
    assert campaign.main(["--out", str(tmp_path), *words.split()]) == 2
    told = capsys.readouterr()
    assert (said in told.err, told.err.count("\n"), told.out) == (True, 1, "")
    assert (tmp_path / "manifest.toml").read_text() == OLD


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    """Not TOML -> said before hours of captures could not be written beside it."""
    (tmp_path / "manifest.toml").write_text("[[")
    with pytest.raises(HtaDsv4Error, match=r"manifest\.toml: not TOML"):
        campaign.run_campaign(tmp_path)


@pytest.mark.parametrize("rows", [(), campaign.PLAN[:1]])
def test_nothing_captured_leaves_the_manifest(
    rows: tuple[campaign.Row, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row fails -> said of each, and what the folder's manifest says stays."""

    def fails(*_args: object, **_more: object) -> None:
        raise HtaDsv4Error("out of memory")

    monkeypatch.setattr(campaign, "build_step", fails)
    monkeypatch.setattr(campaign.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(campaign.torch.cuda, "empty_cache", lambda: None)
    (tmp_path / "manifest.toml").write_text(OLD)
    manifests, missing = campaign.run_campaign(tmp_path, rows)
    assert (manifests, len(missing)) == ([], len(rows))
    assert (tmp_path / "manifest.toml").read_text() == OLD


def test_a_row_captured_again_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row captured into a folder of another trace -> both in the manifest, and the old notes."""

    def captured(_step: object, options: CaptureOptions) -> CaptureResult:
        assert options.out is not None
        made = Manifest(
            options.out.name, "original", 32, 2, 9, "2026-01-01T00:00:00+00:00", Timing(*range(2, 12))
        )
        options.out.touch()
        return CaptureResult(
            options.out, write_manifest(options.out, made), made, Summary(0, 0, 0, 0, {}, ())
        )

    monkeypatch.setattr(campaign, "build_step", lambda *_args, **_more: SimpleNamespace(weights=None))
    monkeypatch.setattr(campaign, "capture_step", captured)
    monkeypatch.setattr(campaign.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(campaign.torch.cuda, "empty_cache", lambda: None)
    (tmp_path / "manifest.toml").write_text('notes = ["mma ran on another machine."]\n' + OLD)
    (tmp_path / "mma.trace.json.gz").touch()
    assert campaign.run_campaign(tmp_path, campaign.PLAN[:1])[1] == []
    found = tomllib.loads((tmp_path / "manifest.toml").read_text())
    assert [entry["trace"] for entry in found["trace"]] == ["original.trace.json.gz", "mma.trace.json.gz"]
    assert found["notes"][-2:] == [
        "From before, as they were: mma.trace.json.gz.",
        "mma ran on another machine.",
    ]
