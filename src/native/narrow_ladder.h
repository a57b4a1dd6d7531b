/* A first pass over a ladder in 16-bit lanes, 32 coordinates at once, for AVX-512 (and for NEON in
narrow_ladder_neon.h).

It takes up to 16 levels over at most 32 cells, whose thresholds fit into registers. Units are
2^-15, so the draw loses its lowest bit; numbers are counted from 1/2, so that they fit even if a
margin raises them above 1. A threshold is T = start + (rise place) 2^-15, rounded; starts are
already raised by the margin and lowered by 1, so that a draw w > T has surely passed, and w > T -
gap may have. Undecided coordinates, and those outside the cells, go to the float32 ladder. */

#ifdef SV_AVX512

struct narrow_lanes {
    __m512i cells, places;
    uint32_t outside;
};

INLINE struct narrow_lanes find_narrow(const struct sv_ladder *job, const void *tile, int is_double,
                                       size_t at)
{
    const vf unit = spread(job->narrow_per_unit), origin = spread(job->narrow_origin);
    const vf end = spread((float)job->narrow_cells);
    __m256i cells[2], places[2];
    uint32_t inside = 0;
    for (int half = 0; half < 2; half++) {
        const vf x = load_floats(tile, is_double, at + 16 * (size_t)half, job->shift);
        /* The limits are outside the cells, and small enough for 2^15 times them to be an int32. */
        const vf place = clamped(fused(x, unit, origin), 1024.0f);
        inside |= (uint32_t)(mask_ge(place, spread(0.0f)) & ~mask_ge(place, end) & 0xffff)
                  << 16 * half;
        /* An x outside is at an end: for tables that decides its code, for families it does not. */
        const __m512i last = _mm512_set1_epi32((int)job->narrow_cells * 32768 - 1);
        __m512i fixed = _mm512_cvttps_epi32((__m512)(place * 32768.0f));
        fixed = _mm512_max_epi32(_mm512_min_epi32(fixed, last), _mm512_setzero_si512());
        cells[half] = _mm512_cvtepi32_epi16(_mm512_srai_epi32(fixed, 15));
        places[half] =
            _mm512_cvtepi32_epi16(_mm512_and_si512(fixed, _mm512_set1_epi32(0x7fff)));
    }
    return (struct narrow_lanes){
        _mm512_inserti64x4(_mm512_castsi256_si512(cells[0]), cells[1], 1),
        _mm512_inserti64x4(_mm512_castsi256_si512(places[0]), places[1], 1),
        job->num_knots ? 0 : ~inside,
    };
}

/* Computes the codes of a tile; bit i % 32 of differing[i / 32] is set where a code is undecided.
   */
INLINE void narrow_pass(const struct sv_ladder *job, const void *tile, int is_double,
                        const uint16_t *draws, uint8_t *codes, uint32_t *differing)
{
    const __m512i gap = _mm512_set1_epi16(job->narrow_gap), one = _mm512_set1_epi16(1);
    const __m512i half = _mm512_set1_epi16((short)0x8000);
    for (size_t at = 0; at < SV_TILE_DRAWS; at += 32) {
        const struct narrow_lanes lanes = find_narrow(job, tile, is_double, at);
        const __m512i draw = _mm512_loadu_si512(draws + at);
        const __m512i word = _mm512_srai_epi16(_mm512_xor_si512(draw, half), 1);
        __m512i code = _mm512_setzero_si512();
        __mmask32 differs = lanes.outside;
        for (size_t j = 0; j + 1 < job->levels; j++) {
            const int16_t *row = job->narrow + 64 * j;
            const __m512i start = _mm512_permutexvar_epi16(lanes.cells, _mm512_loadu_si512(row));
            const __m512i rise = _mm512_permutexvar_epi16(lanes.cells, _mm512_loadu_si512(row + 32));
            const __m512i threshold =
                _mm512_adds_epi16(start, _mm512_mulhrs_epi16(rise, lanes.places));
            const __mmask32 passed = _mm512_cmpgt_epi16_mask(word, threshold);
            /* A threshold that saturates is lowered by the gap, so it counts as undecided. */
            const __m512i lowered = _mm512_subs_epi16(threshold, gap);
            differs |= passed ^ _mm512_cmpgt_epi16_mask(word, lowered);
            code = _mm512_mask_add_epi16(code, passed, code, one);
        }
        _mm256_storeu_si256((__m256i *)(codes + at), _mm512_cvtepi16_epi8(code));
        differing[at / 32] = differs;
    }
}

#elif defined(SV_NEON)
#include "narrow_ladder_neon.h"
#endif
