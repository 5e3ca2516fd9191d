"""One decode step of DeepSeek-V4, layer by layer, with random weights and real kernels.

The step does what a server's step does: metadata, embedding, per layer the hyper-connections around sparse-MLA
attention and around the FP4 mixture of experts, then head and sampling; on one GPU, or on several that share heads,
experts' width and vocabulary and sum after the embedding, after each attention and after each mixture of experts. It
holds no branch on device data and never waits for the GPU, so that it can be captured as a CUDA graph. It feeds
its own token back and moves on one position, so consecutive steps are consecutive tokens.

Run as a file it decodes a few tokens of the tiny model on the CPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from dsv4_kernels.mhc import MhcWeights

from hta_dsv4.capture.caches import make_tables, write_index_k, write_kv
from hta_dsv4.capture.compressor import compress
from hta_dsv4.capture.config import HC, HEAD_DIM, INDEX_DIM, LayerKind, ModelConfig, StepShape, model_config
from hta_dsv4.capture.glue import clamped_swiglu, hadamard, rotate_
from hta_dsv4.capture.layer import Layer, make_layers
from hta_dsv4.capture.linear import project_f32
from hta_dsv4.capture.parallel import ALONE, Ranks
from hta_dsv4.capture.parts import parts_for
from hta_dsv4.capture.scopes import scope
from hta_dsv4.capture.sharding import shard_config, shard_weights
from hta_dsv4.capture.state import Metadata, RopeTables, make_caches, step_metadata
from hta_dsv4.capture.straggler import SCOPE, Straggler
from hta_dsv4.capture.switches import Switches
from hta_dsv4.capture.weights import ModelWeights, random_weights


class DecodeStep:
    """A callable decode step with its weights, caches and position.

    Args:
        config: geometry, or its name.
        shape: batch, context and static maximum context.
        switches: which form of each part runs.
        device: where; Triton forms need CUDA (or Triton's interpreter).
        seed: the same seed gives the same model and caches under every choice of switches.
        sets_per_kind: see :func:`~hta_dsv4.capture.weights.random_weights`.
        weights: a model drawn before, in the number format of ``switches``, and this rank's share of it where there
            are several; drawn from ``seed`` when absent.
        ranks: this process among those that compute the step together; they must be connected before it is called.
        straggler: extra work of one of them.

    Raises:
        HtaDsv4Error: the ranks cannot share the model evenly, or there is no such straggler.
    """

    def __init__(
        self,
        config: ModelConfig | str,
        shape: StepShape,
        switches: Switches,
        device: torch.device | str = "cuda",
        seed: int = 0,
        sets_per_kind: int = 2,
        weights: ModelWeights | None = None,
        ranks: Ranks = ALONE,
        straggler: Straggler | None = None,
    ) -> None:
        self.config = model_config(config) if isinstance(config, str) else config
        self.shape, self.switches = shape, switches
        self.device = torch.device(device)
        self.ranks, self.local = ranks, shard_config(self.config, ranks.world_size)
        if straggler is not None:
            straggler.check(self.config, ranks)
        late = straggler if straggler is not None and straggler.rank == ranks.rank else None
        self.parts = parts_for(switches)
        if weights is None:
            generator = torch.Generator(self.device).manual_seed(seed)
            weights = shard_weights(random_weights(self.config, switches, generator, sets_per_kind), ranks)
        self.weights = weights
        # A stream of its own: caches must not depend on whether the weights were drawn here or handed in.
        generator = torch.Generator(self.device).manual_seed(seed + 1)
        self.tables = make_tables(shape, generator)
        kinds = self.config.layers
        self.caches, self.cache_sets = make_caches(kinds, self.weights, self.tables, shape.batch, generator)
        self.layers = make_layers(self.local, self.weights, self.caches, late)
        B = shape.batch
        spread = max(min(shape.context // 8, shape.context - 1), 0)
        back = torch.randint(0, spread + 1, (B,), generator=generator, device=self.device)
        self.position = shape.context - 1 - back
        self.tokens = torch.randint(0, self.config.vocab, (B,), generator=generator, device=self.device)
        self.rope = RopeTables.up_to(shape.capacity, self.device)
        self._hadamard = hadamard(INDEX_DIM, self.device)
        self.logits: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        """Decode one token per request.

        Returns:
            [B] int64, the next tokens: the step's own state, overwritten by the next call.
        """
        with scope("metadata"):
            meta = step_metadata(self.position, self.shape, self.config.index_topk, self.tables, self.rope)
        with scope("embedding"):
            x = self._embed()[:, None, :].repeat(1, HC, 1)
        for layer in self.layers:
            x = self._layer(layer, x, meta)
        with scope("head/hc_head"):
            head = self.weights.head
            eps, hc_eps = self.config.rms_eps, self.config.hc_eps
            y = self.parts.hc_head(
                x, head.hc_fn, head.hc_scale, head.hc_base, eps=eps, hc_eps=hc_eps, variant=self.switches.mhc
            )
        with scope("head/lm_head"):
            y = F.rms_norm(y, (self.config.hidden,), head.norm, eps)
            logits = y.to(head.lm_head.dtype) @ head.lm_head.t()
            if not self.ranks.alone:
                with scope("head/comm/all_gather"):
                    logits = self.parts.all_gather(logits, self.ranks)
            logits = logits.float()
        with scope("sampling"):
            self.logits = logits
            self.tokens.copy_(torch.softmax(logits, dim=-1).argmax(-1))
            self.position.add_(1).clamp_(max=self.shape.capacity - 1)
        return self.tokens

    def _embed(self) -> torch.Tensor:
        """[B, D] bf16; each rank looks up the tokens of its part of the vocabulary, the others' stay 0."""
        table = self.weights.embedding
        if self.ranks.alone:
            return table[self.tokens]
        entries = table.shape[0]
        mine = self.tokens - self.ranks.rank * entries
        x = table[mine.clamp(0, entries - 1)]
        x.masked_fill_(((mine < 0) | (mine >= entries))[:, None], 0.0)
        return self._summed(x, scope("embedding/comm/all_reduce"))

    def _summed(self, x: torch.Tensor, within: AbstractContextManager[object]) -> torch.Tensor:
        """The sum over ranks of partial results, in place, inside the scope ``within``."""
        if self.ranks.alone:
            return x
        with within:
            out: torch.Tensor = self.parts.all_reduce(x, self.ranks)
            return out

    def _layer(self, layer: Layer, x: torch.Tensor, meta: Metadata) -> torch.Tensor:
        w = layer.weights
        y, post, comb = self._mhc_pre(layer, x, layer.mhc_attn, w.attn_norm, "attention")
        y = self._attention(layer, y, meta)
        with layer.scope("mhc_post/attention"):
            x = self.parts.mhc_post(y, x, post, comb, variant=self.switches.mhc)
        y, post, comb = self._mhc_pre(layer, x, layer.mhc_ffn, w.ffn_norm, "moe")
        y = self._moe(layer, y)
        with layer.scope("mhc_post/moe"):
            out: torch.Tensor = self.parts.mhc_post(y, x, post, comb, variant=self.switches.mhc)
        return out

    def _mhc_pre(
        self, layer: Layer, x: torch.Tensor, w: MhcWeights, norm: torch.Tensor, before: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        c = self.config
        with layer.scope(f"mhc_pre/{before}"):
            y, post, comb = self.parts.mhc_pre(
                x, w, eps=c.rms_eps, hc_eps=c.hc_eps, iters=c.sinkhorn_iters, variant=self.switches.mhc
            )
        with layer.scope(f"norm/{before}"):
            return F.rms_norm(y, (c.hidden,), norm, c.rms_eps), post, comb

    def _attention(self, layer: Layer, x: torch.Tensor, meta: Metadata) -> torch.Tensor:
        c, w, cache, kind = self.local, layer.weights, layer.cache, layer.kind
        rope, fused = "swa" if kind is LayerKind.SWA else "c4", self.switches.glue == "fused"
        B = x.shape[0]
        with layer.scope("attention/q_kv_proj"):
            q_a, kv = torch.split(self.parts.project(w.wqkv_a, x), [c.q_lora, HEAD_DIM], dim=1)
            q_lora = F.rms_norm(q_a, (c.q_lora,), w.q_norm, c.rms_eps)
            q = self.parts.project(w.wq_b, q_lora).view(B, c.heads, HEAD_DIM)
            if fused:
                q = self.parts.q_norm_rope(q, meta.rope[rope], c.rms_eps)
            else:
                q = rotate_(F.rms_norm(q, (HEAD_DIM,), None, c.rms_eps), meta.rope[rope])
        with layer.scope("attention/kv_write"):
            if fused:
                self.parts.kv_insert(cache.swa, meta.write_slot, kv, w.kv_norm, meta.rope[rope], c.rms_eps)
            else:
                kv = rotate_(F.rms_norm(kv, (HEAD_DIM,), w.kv_norm, c.rms_eps), meta.rope[rope])
                write_kv(cache.swa, meta.write_slot, kv)
        slots, length = None, None
        if w.compressor is not None and cache.state is not None and cache.extra is not None:
            with layer.scope("compressor"):
                kv_gate = project_f32(x, w.compressor.kv_gate)
                write = meta.c4_write if kind is LayerKind.C4 else meta.c128_write
                start, state = meta.rope[f"{kind.value} entry"], cache.state
                if fused:
                    self.parts.compress_insert(
                        kv_gate, meta.position, w.compressor, state, cache.extra, write, start, c.rms_eps
                    )
                else:
                    entry, _ = compress(kv_gate, meta.position, w.compressor, state, c.rms_eps)
                    write_kv(cache.extra, write, rotate_(entry, start))
            slots, length = meta.c128_slots, meta.c128_length
        if w.indexer is not None:
            slots, length = self._indexer(layer, x, q_lora, meta), meta.c4_topk_length
        with layer.scope("attention/core"):
            out, _ = self.parts.attention(
                q[:, None], cache.swa, meta.swa_slots, topk_length=meta.swa_length,
                extra=cache.extra, extra_indices=slots, extra_topk_length=length,
                attn_sink=w.sink, variant=self.switches.attention,
            )  # fmt: skip
        with layer.scope("attention/out_proj"):
            out, inverse = out[:, 0], meta.rope[f"{rope} inverse"]
            out = self.parts.q_norm_rope(out, inverse, 0.0, norm=False) if fused else rotate_(out, inverse)
            low = self.parts.project(w.wo_a, out.reshape(B, c.o_groups, -1))
            y: torch.Tensor = self.parts.project(w.wo_b, low.reshape(B, -1))
        if layer.late is not None:
            with layer.scope(f"attention/{SCOPE}"):
                self.parts.spend(layer.late.microseconds, self.device)
        return self._summed(y, layer.scope("attention/comm/all_reduce"))

    def _indexer(self, layer: Layer, x: torch.Tensor, q_lora: torch.Tensor, meta: Metadata) -> torch.Tensor:
        """Slots of the selected entries, [B, 1, topk] int32."""
        c, B, fused = self.config, x.shape[0], self.switches.glue == "fused"
        w, cache = layer.weights.indexer, layer.cache
        assert w is not None
        assert cache.index is not None
        assert cache.index_state is not None
        with layer.scope("indexer/compressor"):
            kv_gate = project_f32(x, w.compressor.kv_gate)
            start, state = meta.rope["c4 entry"], cache.index_state
            if fused:
                self.parts.index_insert(
                    kv_gate, meta.position, w.compressor, state, cache.index, meta.c4_write, start,
                    self._hadamard, c.rms_eps,
                )  # fmt: skip
            else:
                key, _ = compress(kv_gate, meta.position, w.compressor, state, c.rms_eps)
                write_index_k(cache.index, meta.c4_write, rotate_(key, start) @ self._hadamard)
        with layer.scope("indexer/q_proj"):
            q = self.parts.project(w.wq_b, q_lora).view(B, c.index_heads, INDEX_DIM)
            weights = x.to(w.weights_proj.dtype) @ w.weights_proj.t()
            factor = (INDEX_DIM * c.index_heads) ** -0.5
            if fused:
                codes, weights = self.parts.index_query(q, weights, meta.rope["c4"], self._hadamard, factor)
            else:
                turned = (rotate_(q, meta.rope["c4"]) @ self._hadamard).float()
                scale = turned.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0
                codes = (turned / scale).to(torch.float8_e4m3fn)
                weights = weights.float() * scale[..., 0] * factor
        table = self.tables.c4.pages
        with layer.scope("indexer/logits"):
            scores = self.parts.index_logits(
                codes, cache.index, weights, table, meta.c4_length, variant=self.switches.indexer
            )
        with layer.scope("indexer/topk"):
            form = "triton" if self.switches.indexer == "triton" else "torch"
            selected: torch.Tensor = self.parts.index_topk(
                scores, meta.c4_length, table, c.index_topk, variant=form
            )
            return selected[:, None]

    def _moe(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        c, w, hashed = self.config, layer.weights, layer.hashed
        with layer.scope("moe/router"):
            ids, weights = self.parts.route(
                project_f32(x, w.router),
                bias=None if hashed else w.router_bias,
                topk=c.experts_per_token,
                scaling=c.routed_scaling,
                hash_ids=w.hash_table[self.tokens] if hashed else None,
                variant=self.switches.moe,
            )
        with layer.scope("moe/experts"):
            routed: torch.Tensor = self.parts.experts(
                x, w.experts, ids, weights, limit=c.swiglu_limit, variant=self.switches.moe
            )
        with layer.scope("moe/shared_expert"):
            swiglu = self.parts.swiglu if self.switches.glue == "fused" else clamped_swiglu
            shared = swiglu(self.parts.project(w.shared_w13, x), c.swiglu_limit)
            out: torch.Tensor = routed + self.parts.project(w.shared_w2, shared)
        return self._summed(out, layer.scope("moe/comm/all_reduce"))


if __name__ == "__main__":
    cpu = Switches(attention="reference", moe="torch", gemm="bf16", glue="torch")
    step = DecodeStep("tiny", StepShape(batch=2, context=600, max_context=2048), cpu, device="cpu")
    for _ in range(4):
        print(step().tolist())
