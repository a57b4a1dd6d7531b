/* A first pass over a ladder in 16-bit lanes, 32 coordinates at once, for AVX-512 (and for NEON in
narrow_ladder_neon.h).

It takes up to 16 levels over at most 32 cells, whose thresholds fit into registers. Units are
2^-15, so the draw loses its lowest bit; numbers are counted from 1/2, so that they fit even if a
margin raises them above 1. A threshold is T = start + (rise place) 2^-15, rounded; starts are
already raised by the margin and lowered by 1, so that a draw w > T has surely passed, and w > T -
gap may have. Undecided coordinates, and those outside the cells, go to the float32 ladder. (If a
threshold saturates, its draws have surely passed it, or surely not.) */

#ifdef SV_AVX512

/* The thresholds as a search tree, since thresholds ascend: the one in the middle, then the middle
   of each half, and so on. Before depth k there are 2^k paths, whose bit i tells whether a draw
   passed the threshold of depth i; so cell c of path p is entry c + (p << cell_bits) of its depth.
   */
struct narrow_tree {
    int16_t starts[15 * 32], rises[15 * 32];
};

#define MOST_DEPTH 4

/* The registers of a depth's table, and of those before it. */
INLINE size_t tree_registers(int depth, int cell_bits)
{
    return depth + cell_bits <= 5 ? 1 : (size_t)1 << (depth + cell_bits - 5);
}

INLINE size_t registers_before(int depth, int cell_bits)
{
    size_t count = 0;
    for (int k = 0; k < depth; k++)
        count += tree_registers(k, cell_bits);
    return count;
}

INLINE int depth_of(const struct sv_ladder *job)
{
    return job->levels <= 4 ? 2 : job->levels <= 8 ? 3 : MOST_DEPTH;
}

INLINE int cell_bits_of(const struct sv_ladder *job) { return job->narrow_cells <= 8 ? 3 : 5; }

static void plant_tree(const struct sv_ladder *job, struct narrow_tree *tree)
{
    const int depths = depth_of(job), cell_bits = cell_bits_of(job);
    if (!job->narrow_cells)
        return;
    const size_t cells = (size_t)1 << cell_bits;
    for (int k = 0; k < depths; k++)
        for (size_t path = 0; path < (size_t)1 << k; path++) {
            size_t j = ((size_t)1 << (depths - 1 - k)) - 1;
            for (int i = 0; i < k; i++)
                j += (path >> i & 1) << (depths - 1 - i);
            const size_t at = 32 * registers_before(k, cell_bits) + (path << cell_bits);
            if (j + 1 < job->levels) {
                memcpy(tree->starts + at, job->narrow + 64 * j, 2 * cells);
                memcpy(tree->rises + at, job->narrow + 64 * j + 32, 2 * cells);
            } else
                for (size_t c = at; c < at + cells; c++) /* No draw comes near these. */
                    tree->starts[c] = INT16_MAX, tree->rises[c] = 0;
        }
}

/* Loads an entry of 64 for each lane. */
INLINE __m512i looked_up_in_two(const int16_t *table, __m512i index)
{
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), index,
                                     _mm512_loadu_si512(table + 32));
}

/* Loads an entry of up to 8 registers for each lane. The index has six bits; the masks are further
   ones. */
INLINE __m512i looked_up(const int16_t *table, size_t registers, __m512i index,
                         const __mmask32 *further)
{
    if (registers == 1)
        return _mm512_permutexvar_epi16(index, _mm512_loadu_si512(table));
    if (registers == 2)
        return looked_up_in_two(table, index);
    const __m512i below = _mm512_mask_blend_epi16(further[0], looked_up_in_two(table, index),
                                                  looked_up_in_two(table + 64, index));
    if (registers == 4)
        return below;
    const __m512i above = _mm512_mask_blend_epi16(further[0], looked_up_in_two(table + 128, index),
                                                  looked_up_in_two(table + 192, index));
    return _mm512_mask_blend_epi16(further[1], below, above);
}

/* 32 coordinates on their way down the tree. */
struct narrow_lanes {
    __m512i places, words, index, codes;
    __m512i least; /* How far the draw is below a threshold, at the least. */
    __mmask32 passed[MOST_DEPTH];
};

/* How places are found: constants that stay in registers. */
struct narrow_scale {
    vf unit, origin;
    __m512 last;
    double shift;
    int is_table;
};

/* Finds the cells and the places in them, in units of 2^-15 cells; returns which x are outside. */
INLINE uint32_t find_narrow(const struct narrow_scale *scale, const void *tile, int is_double,
                            size_t at, struct narrow_lanes *lanes)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35,
                                         33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3,
                                         1);
    const __m512i even = _mm512_sub_epi16(odd, _mm512_set1_epi16(1));
    __m512i fixed[2];
    uint32_t outside = 0;
    for (int half = 0; half < 2; half++) {
        const vf x = load_floats(tile, is_double, at + 16 * (size_t)half, scale->shift);
        const __m512 place = (__m512)fused(x, scale->unit, scale->origin);
        /* An x outside is at an end: for tables that decides its code, for families it does not. */
        const __m512 inside = _mm512_min_ps(_mm512_max_ps(place, _mm512_setzero_ps()), scale->last);
        if (!scale->is_table)
            outside |= (uint32_t)_mm512_cmp_ps_mask(place, inside, _CMP_NEQ_UQ) << 16 * half;
        fixed[half] = _mm512_slli_epi32(_mm512_cvttps_epi32(inside), 1);
    }
    lanes->index = _mm512_permutex2var_epi16(fixed[0], odd, fixed[1]);
    lanes->places = _mm512_srli_epi16(_mm512_permutex2var_epi16(fixed[0], even, fixed[1]), 1);
    return outside;
}

/* Compares the draws with the thresholds of one depth. */
INLINE void descend(const struct narrow_tree *tree, int depth, int depths, int cell_bits,
                    struct narrow_lanes *lanes)
{
    const size_t table = 32 * registers_before(depth, cell_bits);
    const size_t registers = tree_registers(depth, cell_bits);
    const __mmask32 *further = lanes->passed + 6 - cell_bits;
    const __m512i start = looked_up(tree->starts + table, registers, lanes->index, further);
    const __m512i rise = looked_up(tree->rises + table, registers, lanes->index, further);
    const __m512i threshold = _mm512_adds_epi16(start, _mm512_mulhrs_epi16(rise, lanes->places));
    const __mmask32 passed = _mm512_cmpgt_epi16_mask(lanes->words, threshold);
    const __m512i half = _mm512_set1_epi16((short)(1 << (depths - 1 - depth)));
    /* As an unsigned number the difference is large if the draw passed. */
    lanes->least = _mm512_min_epu16(lanes->least, _mm512_sub_epi16(threshold, lanes->words));
    lanes->codes = _mm512_mask_add_epi16(lanes->codes, passed, lanes->codes, half);
    lanes->passed[depth] = passed;
    if (depth + cell_bits < 6 && depth + 1 < depths)
        lanes->index = _mm512_mask_add_epi16(lanes->index, passed, lanes->index,
                                             _mm512_set1_epi16((short)(1 << (depth + cell_bits))));
}

/* Computes the codes of a tile; bit i % 32 of differing[i / 32] is set where a code is undecided.
   */
INLINE void search_tree(const struct sv_ladder *job, const struct narrow_tree *tree, int depths,
                        int cell_bits, const void *tile, int is_double, const uint16_t *draws,
                        uint8_t *codes, uint32_t *differing)
{
    const __m512i gap = _mm512_set1_epi16(job->narrow_gap);
    const struct narrow_scale scale = {
        spread(32768.0f * job->narrow_per_unit), spread(32768.0f * job->narrow_origin),
        _mm512_set1_ps((float)((int)job->narrow_cells * 32768 - 1)), job->shift,
        job->num_knots > 0};
    for (size_t at = 0; at < SV_TILE_DRAWS; at += 32) {
        struct narrow_lanes lanes = {.codes = _mm512_setzero_si512(),
                                     .least = _mm512_set1_epi16(-1)};
        const uint32_t outside = find_narrow(&scale, tile, is_double, at, &lanes);
        const __m512i half = _mm512_set1_epi16((short)0x8000);
        lanes.words = _mm512_srai_epi16(_mm512_xor_si512(_mm512_loadu_si512(draws + at), half), 1);
        descend(tree, 0, depths, cell_bits, &lanes);
        descend(tree, 1, depths, cell_bits, &lanes);
        if (depths > 2)
            descend(tree, 2, depths, cell_bits, &lanes);
        if (depths > 3)
            descend(tree, 3, depths, cell_bits, &lanes);
        _mm256_storeu_si256((__m256i *)(codes + at), _mm512_cvtepi16_epi8(lanes.codes));
        differing[at / 32] = outside | _mm512_cmplt_epu16_mask(lanes.least, gap);
    }
}

INLINE void narrow_pass(const struct sv_ladder *job, const struct narrow_tree *tree,
                        const void *tile, int is_double, const uint16_t *draws, uint8_t *codes,
                        uint32_t *differing)
{
#define SEARCH(depths, cell_bits)                                                                  \
    if (depth_of(job) == depths && cell_bits_of(job) == cell_bits)                                 \
        search_tree(job, tree, depths, cell_bits, tile, is_double, draws, codes, differing);
    SEARCH(2, 3)
    SEARCH(2, 5)
    SEARCH(3, 3)
    SEARCH(3, 5)
    SEARCH(4, 3)
    SEARCH(4, 5)
#undef SEARCH
}

#else
/* Without the permutations of AVX-512 there is no tree. */
struct narrow_tree {
    char none;
};

INLINE void plant_tree(const struct sv_ladder *job, struct narrow_tree *tree)
{
    (void)job, (void)tree;
}

#ifdef SV_NEON
#include "narrow_ladder_neon.h"
#endif
#endif
