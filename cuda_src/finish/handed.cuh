// The steps of finish/deferred.cuh, done by warps of their own. The multiplying warps leave the sums of a tile in shared memory, 16 bits
// each, and begin the next tile, while finishing warps take 16 rows at a time through the chain. The matrix units wait for nothing but this
// copy. Finishing warps have registers for 32 elements a lane at once: a single warp needs that many independent chains to hide the latency
// of instructions that depend on each other.
//
// Multiplying warp c hands over strip c of every tile; strips go round among the finishing warps. Barriers: parked[c][f] completes when a
// strip is ready for finisher f, who waits for each such phase once, in order (with one barrier for all finishers, one of them could
// mistake a tile for the second one after it); taken[c][b] completes when block b has been read and its place is free again.
#ifndef BITSPARSE_EPILOGUE_HANDED_CUH
#define BITSPARSE_EPILOGUE_HANDED_CUH

#include "finish/deferred.cuh"

template <class T> BS_INLINE const T (&half_of(const T (&x)[32], int half))[16] { return *(const T(*)[16])(x + 16 * half); }
template <class T> BS_INLINE T (&half_of(T (&x)[32], int half))[16] { return *(T(*)[16])(x + 16 * half); }

// What a lane needs of a block of 64 columns, twice as much as of half a block: that many elements are in flight at once.
struct BlockInput {
    HalfVectors vectors[2];
    HalfSums sums[2];
    const float2 *scale, *bias; // of this lane's first column; null: there is none

    static __device__ __forceinline__ const float2 *start(const EpilogueVector &v, int batch, int column)
    {
        return v.at ? (const float2 *)(v.at + (bs_i64)batch * v.batch_step + column) : nullptr;
    }

    __device__ __forceinline__ BlockInput(const EpilogueParams &e, int batch, int column)
        : scale(start(e.col_scale[0], batch, column)), bias(start(e.bias, batch, column))
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            vectors[i >> 2].scale[i & 3] = make_float2(1.0f, 1.0f), vectors[i >> 2].bias[i & 3] = make_float2(-0.0f, -0.0f);
    }

    // Loads the vectors of the block whose first half is `turn`.
    __device__ __forceinline__ void ask(int turn)
    {
        if (scale)
#pragma unroll
            for (int i = 0; i < 8; i++)
                vectors[i >> 2].scale[i & 3] = __ldg(scale + 16 * turn + 4 * i);
        if (bias)
#pragma unroll
            for (int i = 0; i < 8; i++)
                vectors[i >> 2].bias[i & 3] = __ldg(bias + 16 * turn + 4 * i);
    }

    __device__ __forceinline__ void load(u32 block, int lane)
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            sums[half].load(block + half * 1024, lane);
    }

    __device__ __forceinline__ void take(const float (&row)[2], float (&v)[32]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            sums[half].scale(vectors[half], row, half_of(v, half));
    }
};

constexpr int kFinishers = 3; // warps that the warpgroup of the loading warp has left

// For `strips` strips a tile and up to `blocks` blocks of columns.
template <int strips, int blocks> struct HandedSums {
    typedef WordArea<256, 128> Words;
    static constexpr int kStrip = 2048 * blocks, kWords = 544 * blocks, kBytes = strips * kStrip + kFinishers * kWords;
    static constexpr int kBarriers = strips * (kFinishers + blocks);
    u32 slots, barriers;

    __device__ __forceinline__ u32 strip_at(int strip) const { return slots + strip * kStrip; }
    __device__ __forceinline__ u32 words_of(int finisher) const { return slots + strips * kStrip + finisher * kWords; }
    __device__ __forceinline__ u32 parked(int strip, int finisher) const { return barriers + (strip * kFinishers + finisher) * 8; }
    __device__ __forceinline__ u32 taken(int strip, int block) const
    {
        return barriers + (strips * kFinishers + strip * blocks + block) * 8;
    }

    __device__ __forceinline__ void begin() const
    {
        for (int i = 0; i < kBarriers; i++)
            barrier_init(barriers + i * 8, 1);
    }

    // `tile`: how many tiles this block has had before.
    template <int n> __device__ __forceinline__ void give(const int (&acc)[n], int of_blocks, int strip, int tile) const
    {
        const int lane = pinned_lane();
#pragma unroll
        for (int block = 0; block < blocks; block++)
            if (block < of_blocks) {
                barrier_wait(taken(strip, block), ~tile & 1);
#pragma unroll
                for (int half = 0; half < 2; half++)
                    HalfSums::store(strip_at(strip) + (2 * block + half) * 1024, lane, acc, 32 * block + 16 * half);
            }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(parked(strip, (tile * strips + strip) % kFinishers));
    }

    // A block's vectors and sums are loaded as soon as those of the previous block are used up.
    __device__ __forceinline__ void finish(const EpilogueParams &e, const Strip &to, int of_blocks, int strip, int tile, int finisher) const
    {
        const int lane = pinned_lane(), turns = to.turns(e, of_blocks);
        const u32 words = words_of(finisher), from = strip_at(strip);
        float row[2];
        BlockInput input(e, to.batch, to.column0 + 2 * (lane & 3));
        if (turns > 0) {
            to.row_scales(e, lane, row);
            input.ask(0);
        }
        barrier_wait(parked(strip, finisher), tile / kFinishers & 1);
        if (turns > 0)
            input.load(from, lane);
#pragma unroll 1
        for (int turn = 0; turn < turns; turn += 2) {
            float v[32];
            u32 code[32];
            input.take(row, v);
            free(strip, turn >> 1, lane);
            const int next = min(turn + 2, turns - 2); // after the last block it is loaded once more, unused
            input.ask(next);
            input.load(from + next * 1024, lane);
            codes_of_bounded(e, v, code);
            const int left = e.n - to.column0 - 32 * turn;
            uint2 one, other;
            plane_words(half_of(code, 0), half_of(code, 1), lane, one, other);
            Words::put(words, turn, lane, first_columns(one, left));
            Words::put(words, turn + 1, lane, first_columns(other, left - 32));
        }
        for (int block = turns >> 1; block < of_blocks; block++) // blocks beyond the edge of the result
            free(strip, block, lane);
        if (turns > 0)
            Words::store(e, words, to, turns, lane);
    }

    __device__ __forceinline__ void free(int strip, int block, int lane) const
    {
        __syncwarp();
        if (lane == 0) // if all lanes arrived, a product of 8192^3 would take 7 % longer
            barrier_arrive(taken(strip, block));
    }
};

#endif
