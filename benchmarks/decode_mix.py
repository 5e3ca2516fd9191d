"""The kernels of a generated decode step: real torch.profiler spellings, shapes and typical durations.

One layer of DeepSeek-V4 decode at batch 32 as a PyTorch fallback runs it: SIMT FP32 indexer scoring, sparse
attention in two Triton kernels, FP4 experts, and the elementwise glue between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KERNEL, MEMCPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Template:
    """One kernel of the mix: what it is, what asked for it, how it was launched.

    Attributes:
        name: the kernel's name as torch.profiler spells it.
        median_ns: median duration, ns.
        grid, block: launch shape.
        registers, shared_mem: registers per thread; bytes of shared memory per block.
        ops: the CPU ops around the launch, outermost first; empty for a launch outside any op.
        dims, dtypes: those ops' input dims and types.
        launch, cbid: the runtime or driver call and Kineto's callback id for it.
        kind: the category, :data:`KERNEL`, :data:`MEMCPY` or :data:`MEMSET`.
        size: bytes of a copy or set.
        repeat: times in one layer.
    """

    name: str
    median_ns: int
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    registers: int = 0
    shared_mem: int = 0
    ops: tuple[str, ...] = ()
    dims: Dims = field(default=())
    dtypes: tuple[str, ...] = ()
    launch: str = "cudaLaunchKernel"
    cbid: int = 211
    kind: str = KERNEL
    size: int = 0
    repeat: int = 1


def _driver(
    name: str,
    median_ns: int,
    grid: tuple[int, int, int],
    threads: int,
    registers: int,
    shared: int,
    repeat: int = 1,
) -> Template:
    """A Triton kernel launched outside any op."""
    return Template(
        name,
        median_ns,
        grid,
        (threads, 1, 1),
        registers,
        shared,
        launch="cuLaunchKernelEx",
        cbid=652,
        repeat=repeat,
    )


_AT = "at::native::"
_BF, _F, _L, _S = "c10::BFloat16", "float", "long int", "Scalar"
_COPY = (
    f"{_AT}direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::"
    "{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, "
    f"{_AT}memory::LoadWithCast<1>, {_AT}memory::StoreWithCast<1>"
)
_MUL = (
    f"{_AT}gpu_kernel_impl_nocast<{_AT}BinaryFunctor<float, float, float, {_AT}binary_internal::"
    f"MulFunctor<float> > >(at::TensorIteratorBase&, {_AT}BinaryFunctor<float, float, float, "
    f"{_AT}binary_internal::MulFunctor<float> > const&)::{{lambda(int)#1}}"
)
_REDUCE = (
    f"{_AT}ReduceOp<float, {_AT}func_wrapper_t<float, {_AT}sum_functor<float, float, float>::operator()"
    "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4>"
)
_SILU = (
    f"{_AT}(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{{lambda()#1}}::operator()() const::"
    "{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>"
)
_INDEX = (
    f"{_AT}gpu_index_kernel<{_AT}index_kernel_impl<{_AT}OpaqueType<2> >(at::TensorIteratorBase&, "
    "c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}>"
    "(at::TensorIteratorBase&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(int)#1}"
)
_ADD = f"{_AT}CUDAFunctor_add<float>, std::array<char*, 3ul>"
_FILL = f"{_AT}FillFunctor<float>, std::array<char*, 1ul>"

_LAYER = (
    _driver("_rmsnorm_fp8_e8m0_kernel", 2500, (32, 1, 1), 256, 32, 1024, repeat=3),
    Template(
        "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_NNT",
        6100,
        (16, 8, 1),
        (384, 1, 1),
        168,
        213_000,
        ("aten::linear", "aten::mm"),
        ((32, 4096), (4096, 1024)),
        (_BF, _BF),
        "cudaLaunchKernelExC",
        430,
        repeat=2,
    ),
    Template(
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, "
        "false, float, __nv_bfloat16, __nv_bfloat16, true, false, false, false>("
        "cublasLt::cublasSplitKParams<float>, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, "
        "float const*, void*, long, float*, int*)",
        1900,
        (32, 4, 1),
        (32, 16, 1),
        40,
    ),
    Template(
        f"void {_AT}unrolled_elementwise_kernel<{_COPY} >(int, {_COPY})",
        2100,
        (1024, 1, 1),
        (128, 1, 1),
        32,
        0,
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        ((32, 4096), (32, 4096), ()),
        (_F, _BF, _S),
        repeat=5,
    ),
    Template(
        f"void {_AT}elementwise_kernel<128, 2, {_MUL}>(int, {_MUL})",
        6000,
        (65536, 1, 1),
        (128, 1, 1),
        24,
        0,
        ("aten::mul",),
        ((32, 64, 8192), (32, 64, 1)),
        (_F, _F),
        repeat=2,
    ),
    Template(
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_"
        "execute_kernel__5x_cublas",
        52_000,
        (1, 128, 32),
        (128, 1, 1),
        121,
        12_672,
        ("aten::bmm",),
        ((32, 64, 128), (32, 128, 8192)),
        (_F, _F),
        "cudaLaunchKernelExC",
        430,
    ),
    Template(
        f"void {_AT}reduce_kernel<512, 1, {_REDUCE} >({_REDUCE})",
        4700,
        (16, 32, 1),
        (32, 16, 1),
        48,
        16,
        ("aten::sum",),
        ((32, 64, 8192), (), ()),
        (_F, "ScalarList", _S),
        repeat=2,
    ),
    Template(
        "sglang::topk_small_batch_kernel",
        8800,
        (32, 1, 1),
        (1024, 1, 1),
        40,
        131_072,
        ("sgl_kernel::topk",),
        ((32, 8192), (32,)),
        (_F, "int"),
    ),
    Template(
        f"void {_AT}index_elementwise_kernel<128, 4, {_INDEX}>(long, {_INDEX})",
        4300,
        (23040, 1, 1),
        (128, 1, 1),
        30,
        0,
        ("aten::index",),
        ((262144, 576), (32, 640)),
        (_BF, _L),
        repeat=2,
    ),
    _driver("_sparse_attn_decode_partial_kernel", 24_000, (32, 4, 1), 256, 255, 98_304),
    _driver("_combine_splitk_kernel", 2600, (32, 64, 1), 128, 40, 2048, repeat=2),
    Template(
        f"void {_AT}vectorized_elementwise_kernel<4, {_ADD} >(int, {_ADD})",
        1700,
        (512, 1, 1),
        (128, 1, 1),
        18,
        0,
        ("aten::add",),
        ((32, 4, 4096), (32, 4, 4096), ()),
        (_F, _F, _S),
        repeat=8,
    ),
    Template(
        "triton_poi_fused__to_copy_add_mul_rsqrt_3",
        1500,
        (256, 1, 1),
        (128, 1, 1),
        26,
        0,
        ("triton_poi_fused__to_copy_add_mul_rsqrt_3",),
        ((32, 4096), (4096,)),
        (_BF, _BF),
        "cuLaunchKernel",
        307,
        repeat=5,
    ),
    _driver("_hc_split_sinkhorn_triton_kernel", 3100, (32, 1, 1), 128, 64, 512, repeat=2),
    _driver("_p_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128", 14_500, (132, 1, 1), 384, 168, 200_704, repeat=2),
    Template(
        f"void {_AT}vectorized_elementwise_kernel<8, {_SILU} >(int, {_SILU})",
        1300,
        (96, 1, 1),
        (128, 1, 1),
        22,
        0,
        ("aten::silu",),
        ((192, 2048),),
        (_BF,),
        repeat=3,
    ),
    Template(
        f"void {_AT}vectorized_elementwise_kernel<4, {_FILL} >(int, {_FILL})",
        900,
        (2, 1, 1),
        (128, 1, 1),
        16,
        0,
        ("aten::zeros", "aten::zero_", "aten::fill_"),
        ((32, 64), ()),
        (_F, _S),
        repeat=4,
    ),
)

#: One layer, in order, each kernel as often as a layer runs it.
LAYER: tuple[Template, ...] = tuple(t for t in _LAYER for _ in range(t.repeat))
#: What a step adds around its layers.
HTOD = Template(
    "Memcpy HtoD (Pinned -> Device)",
    1250,
    ops=("aten::to", "aten::_to_copy", "aten::copy_"),
    dims=((32,), ()),
    dtypes=(_L, ""),
    launch="cudaMemcpyAsync",
    cbid=41,
    kind=MEMCPY,
    size=256,
)
DTOH = replace(HTOD, name="Memcpy DtoH (Device -> Pageable)", median_ns=2400)
ZERO = replace(
    HTOD,
    name="Memset (Device)",
    median_ns=780,
    ops=("aten::sum",),
    launch="cudaMemsetAsync",
    cbid=51,
    kind=MEMSET,
    size=4,
)
