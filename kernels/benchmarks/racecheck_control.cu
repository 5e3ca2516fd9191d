// Hand-overs between groups of warps as the Hopper form makes them, alone, to see what racecheck can follow.
//
//   nvcc -O2 -lineinfo -gencode=arch=compute_90a,code=sm_90a -o control racecheck_control.cu
//   compute-sanitizer --tool racecheck ./control chain-one
//
// Three groups of 128 threads share BUFFERS buffers. The gatherer writes 64 validity values a block, the scorer reads
// them and writes 64 factors, the follower reads those: the barriers, counts and phases of hopper_produce.py and
// hopper_consume.py. A case is SHAPE-ARRIVAL; `./control` lists all. Every shape is free of races but for those named
// racy, each of which has one wait behind the accesses that it should be before, or one barrier less.

#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr int BUFFERS = 2, WIDTH = 64, GROUP = 128, GRID = 24;

// Who arrives on an mbarrier for the 128 threads of a group: one thread after a barrier of the group, as
// Triton's arrive does; a lane of each warp after a barrier of the warp; every thread for itself.
enum Arrival { ONE, WARPS, ALL };
enum Fault { NONE, WEIGHTED_LATE, EMPTY_LATE, FULL_LATE, NO_BARRIER };

struct Case {
    const char *shape;
    int groups;   // 2: one hand-over and the way back; 3: the whole chain
    int blocks;
    int pieces;   // arrivals on `full` for a block, one per half of the validity values
    bool helped;  // the follower makes the second half of the first block
    bool matrix;  // 2 groups only: stmatrix and ldmatrix instead of plain stores and loads
    Fault fault;
};

__device__ uint32_t address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ void init(uint64_t *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count) : "memory");
}

__device__ void wait(uint64_t *bar, int phase) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra.uni again;\n}\n" ::"r"(address(bar)),
        "r"(phase)
        : "memory");
}

template <Arrival ARRIVAL> constexpr int arrivals = ARRIVAL == ALL ? GROUP : ARRIVAL == WARPS ? GROUP / 32 : 1;

// What the 128 threads of a group did before this is ordered before what any thread does after its wait.
template <Arrival ARRIVAL, int ID> __device__ void hand_over(uint64_t *bar, bool barrier = true) {
    if (ARRIVAL == ONE && barrier) asm volatile("bar.sync %0, 128;" ::"n"(ID + 1) : "memory");
    if (ARRIVAL == WARPS && barrier) __syncwarp();
    if (threadIdx.x % (GROUP / arrivals<ARRIVAL>) == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}

template <Arrival ARRIVAL> __global__ void __launch_bounds__(3 * GROUP) chain(Case c, float *out) {
    __shared__ float bias[BUFFERS][WIDTH], factor[BUFFERS][WIDTH];
    __shared__ uint64_t full[BUFFERS], empty[BUFFERS], weighted[BUFFERS];
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP, share = WIDTH / c.pieces;
    if (threadIdx.x == 0)
        for (int i = 0; i < BUFFERS; ++i) {
            init(full + i, c.pieces * arrivals<ARRIVAL>);
            init(empty + i, 2 * arrivals<ARRIVAL>);
            init(weighted + i, arrivals<ARRIVAL>);
        }
    __syncthreads();
    if (group == 0) {
        for (int i = 0; i < c.blocks; ++i) {
            const int buffer = i % BUFFERS, phase = i / BUFFERS & 1;
            if (c.fault != EMPTY_LATE) wait(empty + buffer, phase ^ 1);
            for (int piece = 0; piece < (c.helped && i == 0 ? 1 : c.pieces); ++piece) {
                if (lane < share) bias[buffer][piece * share + lane] = i + piece * share + lane;
                if (c.fault == EMPTY_LATE) wait(empty + buffer, phase ^ 1);
                hand_over<ARRIVAL, 0>(full + buffer);
            }
        }
    } else if (group == 1) {
        for (int i = 0; i < c.blocks; ++i) {
            const int buffer = i % BUFFERS, phase = i / BUFFERS & 1;
            if (c.fault != FULL_LATE) wait(full + buffer, phase);
            const float value = bias[buffer][lane % WIDTH];
            if (c.fault == FULL_LATE) wait(full + buffer, phase);
            if (lane < WIDTH) factor[buffer][lane] = 2 * value;
            hand_over<ARRIVAL, 1>(weighted + buffer, c.fault != NO_BARRIER);
            hand_over<ARRIVAL, 1>(empty + buffer);
        }
    } else {
        float sum = 0;
        if (c.helped) {
            if (lane < share) bias[0][share + lane] = share + lane;
            hand_over<ARRIVAL, 2>(full);
        }
        for (int i = 0; i < c.blocks; ++i) {
            const int buffer = i % BUFFERS, phase = i / BUFFERS & 1;
            wait(full + buffer, phase);
            if (c.fault != WEIGHTED_LATE) wait(weighted + buffer, phase);
            sum += factor[buffer][(lane + 17) % WIDTH];
            if (c.fault == WEIGHTED_LATE) wait(weighted + buffer, phase);
            hand_over<ARRIVAL, 2>(empty + buffer);
        }
        out[blockIdx.x * GROUP + lane] = sum;
    }
}

template <Arrival ARRIVAL> __global__ void __launch_bounds__(2 * GROUP) pair(Case c, float *out) {
    __shared__ __align__(16) float factor[BUFFERS][GROUP];
    __shared__ uint64_t empty[BUFFERS], weighted[BUFFERS];
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP;
    if (threadIdx.x == 0)
        for (int i = 0; i < BUFFERS; ++i) init(empty + i, arrivals<ARRIVAL>), init(weighted + i, arrivals<ARRIVAL>);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < c.blocks; ++i) {
        const int buffer = i % BUFFERS, phase = i / BUFFERS & 1;
        // A warp's 8 rows of 16 bytes; its lanes 0 to 7 name them.
        const uint32_t row = address(&factor[buffer][lane / 32 * 32 + lane % 8 * 4]);
        if (group == 0) {
            wait(empty + buffer, phase ^ 1);
            const float value = 2 * (i + lane);
            if (c.matrix)
                asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(row), "f"(value) : "memory");
            else
                factor[buffer][lane] = value;
            hand_over<ARRIVAL, 0>(weighted + buffer, c.fault != NO_BARRIER);
        } else {
            if (c.fault != WEIGHTED_LATE) wait(weighted + buffer, phase);
            float value;
            if (c.matrix)
                asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=f"(value) : "r"(row) : "memory");
            else
                value = factor[buffer][lane];
            if (c.fault == WEIGHTED_LATE) wait(weighted + buffer, phase);
            sum += value;
            hand_over<ARRIVAL, 1>(empty + buffer);
        }
    }
    if (group == 1) out[blockIdx.x * GROUP + lane] = sum;
}

const Case CASES[] = {
    {"once", 2, 1, 1, false, false, NONE},
    {"pair", 2, 8, 1, false, false, NONE},
    {"chain", 3, 8, 1, false, false, NONE},
    {"pieces", 3, 8, 2, false, false, NONE},
    {"helped", 3, 8, 2, true, false, NONE},
    {"matrix", 2, 8, 1, false, true, NONE},
    {"racy-matrix", 2, 8, 1, false, true, WEIGHTED_LATE},
    {"racy-once", 2, 1, 1, false, false, WEIGHTED_LATE},
    {"racy-weighted", 3, 8, 2, false, false, WEIGHTED_LATE},
    {"racy-empty", 3, 8, 2, false, false, EMPTY_LATE},
    {"racy-full", 3, 8, 2, false, false, FULL_LATE},
    {"racy-barrier", 3, 8, 2, false, false, NO_BARRIER},
};

template <Arrival ARRIVAL> int run(const Case &c, const char *name) {
    float *out, host[GRID * GROUP];
    if (cudaMalloc(&out, sizeof host)) return 2;
    if (c.groups == 3) chain<ARRIVAL><<<GRID, 3 * GROUP>>>(c, out);
    else pair<ARRIVAL><<<GRID, 2 * GROUP>>>(c, out);
    if (cudaError_t error = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost)) return puts(cudaGetErrorString(error)), 2;
    int wrong = 0;
    for (int i = 0; i < GRID * GROUP; ++i) {
        float expected = 0;
        for (int b = 0; b < c.blocks; ++b) expected += 2 * (b + (c.groups == 3 ? (i % GROUP + 17) % WIDTH : i % GROUP));
        wrong += host[i] != expected;
    }
    printf("%s: %d of %d results wrong\n", name, wrong, GRID * GROUP);
    return 0;
}

int main(int argc, char **argv) {
    const char *arrivals[] = {"one", "warps", "all"};
    for (const Case &c : CASES)
        for (int a = 0; a < 3; ++a) {
            char name[40];
            snprintf(name, sizeof name, "%s-%s", c.shape, arrivals[a]);
            if (c.fault == NO_BARRIER && a == ALL) continue;  // has none to leave out
            if (argc < 2) puts(name);
            else if (!strcmp(argv[1], name)) return a == ONE ? run<ONE>(c, name) : a == WARPS ? run<WARPS>(c, name) : run<ALL>(c, name);
        }
    return argc < 2 ? 0 : 2;
}
