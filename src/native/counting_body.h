/* Sums of packed codes over clients: SV_BATCH payloads at a time, one register of each. */

/* Sets high and sum to the two bits of a + b + sum, in every position. */
INLINE void full_add(vq *high, vq *sum, vq a, vq b)
{
#if defined(SV_AVX512)
    const __m512i x = (__m512i)a, y = (__m512i)b, z = (__m512i)*sum;
    *high = (vq)_mm512_ternarylogic_epi64(x, y, z, 0xe8);
    *sum = (vq)_mm512_ternarylogic_epi64(x, y, z, 0x96);
#elif defined(SV_NEON)
    const uint64x2_t one = (uint64x2_t)(a ^ b); /* Where it is 0, a = b is the upper bit. */
    *high = (vq)vbslq_u64(one, (uint64x2_t)*sum, (uint64x2_t)a);
    *sum ^= (vq)one;
#else
    const vq one = a ^ b;
    *high = (a & b) | (one & *sum);
    *sum ^= one;
#endif
}

/* One register of payload k; zeros beyond its end, or if k is not below count. */
INLINE vq taken(const uint8_t *const *payloads, int k, int count, size_t at, size_t available)
{
    vq word = {0};
    if (k < count)
        memcpy(&word, payloads[k] + at, available < WIDE ? available : WIDE);
    return word;
}

/* Adds four payloads to the planes 1 and 2, and returns the bit that they carry into plane 4. */
INLINE vq four_more(vq *ones, vq *twos, const uint8_t *const *payloads, int k, int count, size_t at,
                    size_t available)
{
    vq first, second, high;
    full_add(&first, ones, taken(payloads, k, count, at, available),
             taken(payloads, k + 1, count, at, available));
    full_add(&second, ones, taken(payloads, k + 2, count, at, available),
             taken(payloads, k + 3, count, at, available));
    full_add(&high, twos, first, second);
    return high;
}

/* Carry-save addition of 16 payloads to the planes 1, 2, 4 and 8; returns the carry into 16. */
INLINE void count_column(uint8_t *const *planes, int used, const uint8_t *const *payloads,
                         int count, size_t at, size_t available)
{
    vq low[4], four[4], eight[2], carry;
    for (int k = 0; k < 4; k++)
        low[k] = *(const vq_any *)(planes[k] + at);
    for (int k = 0; k < 4; k++)
        four[k] = four_more(&low[0], &low[1], payloads, 4 * k, count, at, available);
    full_add(&eight[0], &low[2], four[0], four[1]);
    full_add(&eight[1], &low[2], four[2], four[3]);
    full_add(&carry, &low[3], eight[0], eight[1]);
    for (int k = 0; k < 4; k++)
        *(vq_any *)(planes[k] + at) = low[k];
    for (int k = 4; k < used; k++) {
        const vq plane = *(const vq_any *)(planes[k] + at);
        *(vq_any *)(planes[k] + at) = plane ^ carry;
        carry &= plane;
    }
}

#define STRIP ((size_t)2048) /* bytes */
#define AHEAD ((size_t)512)

/* Fetches what is needed soon: ARM processors do not recognize so many streams of reads by
   themselves. Once for each line of a cache. */
INLINE void fetch_ahead(const uint8_t *const *payloads, size_t at, size_t end)
{
#if defined(SV_NEON)
    if (at % 64 == 0 && at + AHEAD < end)
        for (int k = 0; k < SV_BATCH; k++)
            __builtin_prefetch(payloads[k] + at + AHEAD);
#else
    (void)payloads, (void)at, (void)end;
#endif
}

static void count_bits(uint8_t *const *planes, int used, const uint8_t *const *payloads, int count,
                       size_t begin, size_t end)
{
    /* Strips are so narrow that their planes stay in the L1 cache while all payloads are read. */
    for (size_t strip = begin; strip < end; strip += STRIP) {
        const size_t stop = end - strip < STRIP ? end : strip + STRIP;
        for (int k = 0; k < count; k += SV_BATCH) {
            const int some = count - k < SV_BATCH ? count - k : SV_BATCH;
            size_t at = strip;
            if (some == SV_BATCH)
                for (; at + WIDE <= stop; at += WIDE) {
                    fetch_ahead(payloads + k, at, end);
                    count_column(planes, used, payloads + k, SV_BATCH, at, WIDE);
                }
            for (; at < stop; at += WIDE)
                count_column(planes, used, payloads + k, some, at, stop - at);
        }
    }
}

/* WIDE bits, each as a byte of ones or zeros. */
INLINE vb byte_masks(const uint8_t *bits)
{
#if defined(SV_AVX512)
    uint64_t mask;
    memcpy(&mask, bits, sizeof mask);
    return (vb)_mm512_movm_epi8(mask);
#elif defined(SV_AVX2)
    uint32_t four;
    memcpy(&four, bits, sizeof four);
    const __m256i places = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202,
                                             0x0101010101010101, 0);
    const __m256i weights = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i copies = _mm256_shuffle_epi8(_mm256_set1_epi32((int)four), places);
    return (vb)_mm256_cmpeq_epi8(_mm256_and_si256(copies, weights), weights);
#elif defined(SV_NEON)
    uint16_t two;
    memcpy(&two, bits, sizeof two);
    const uint8x16_t places = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    const uint8x16_t weights = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    return (vb)vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u16(vdupq_n_u16(two)), places), weights);
#else
    vq copies;
    for (size_t i = 0; i < WIDE / 8; i++)
        copies[i] = bits[i] * EACH_BYTE;
    return (vb)((vb)(copies & 0x8040201008040201u) != 0);
#endif
}

static void read_counts(const uint8_t *const *planes, int used, size_t first, size_t count,
                        uint32_t *out)
{
    for (size_t i = 0; i < count; i += WIDE) {
        const size_t at = (first + i) / 8, some = count - i < WIDE ? count - i : WIDE;
        uint32_t counts[WIDE] = {0};
        for (int low = 0; low < used; low += 8) {
            vb bytes = {0};
            for (int k = used < low + 8 ? used : low + 8; k-- > low;)
                bytes = bytes + bytes - byte_masks(planes[k] + at); /* A true mask is -1. */
            for (size_t l = 0; l < WIDE; l++)
                counts[l] |= (uint32_t)bytes[l] << low;
        }
        memcpy(out + i, counts, 4 * some);
    }
}

/* Computes points[0] n_0 + points[1] n_1 + ..., added in this order. */
static void combine(const uint32_t *counts, size_t count, int levels, uint32_t received,
                    const double *points, double *out)
{
    uint32_t rest[OPENED];
    for (size_t first = 0; first < count; first += OPENED) {
        const size_t some = count - first < OPENED ? count - first : OPENED;
        double *restrict part = out + first;
        for (size_t i = 0; i < some; i++)
            rest[i] = received;
        for (int code = 1; code < levels; code++)
            for (size_t i = 0; i < some; i++)
                rest[i] -= counts[(size_t)(code - 1) * count + first + i];
        for (size_t i = 0; i < some; i++)
            part[i] = points[0] * (double)rest[i];
        for (int code = 1; code < levels; code++)
            for (size_t i = 0; i < some; i++)
                part[i] += points[code] * (double)counts[(size_t)(code - 1) * count + first + i];
    }
}

/* Adds 1 to the counts where a code is the wanted one. */
INLINE vb one_more(vb counts, vb codes, vb wanted)
{
#if defined(SV_AVX512)
    const __mmask64 equal = _mm512_cmpeq_epi8_mask((__m512i)codes, (__m512i)wanted);
    return (vb)_mm512_mask_add_epi8((__m512i)counts, equal, (__m512i)counts, _mm512_set1_epi8(1));
#else
    return counts - (vb)(codes == wanted); /* A true comparison is -1. */
#endif
}

/* Counts each of `levels` codes but 0, with a counter of one byte. Codes of 2 and 4 bits are
   compared inside their bytes (`per` codes in a byte: counter s of byte i is for code per i + s).
   */
INLINE void count_codes(uint8_t *counters, size_t stride, int levels, int per,
                        const vq words[SV_BATCH], int count, size_t at)
{
    const int bits = per == 1 ? 8 : 8 / per;
    const vq mask = (vq){0} + EACH_BYTE * ((1u << bits) - 1);
    for (int s = 0; s < per; s++) {
        vb codes[SV_BATCH];
        for (int k = 0; k < count; k++)
            codes[k] = (vb)((words[k] >> (uint64_t)(s * bits)) & mask);
        for (int code = 1; code < levels; code++) {
            const size_t row = (size_t)((code - 1) * per + s);
            uint8_t *place = counters + row * stride + at;
            const vb wanted = (vb){0} + (uint8_t)code;
            vb total = *(const vb_any *)place;
            for (int k = 0; k < count; k++)
                total = one_more(total, codes[k], wanted);
            *(vb_any *)place = total;
        }
    }
}

INLINE void count_in_bytes(uint8_t *counters, size_t stride, int levels, int per,
                           const uint8_t *const *payloads, int count, size_t begin, size_t end)
{
    vq words[SV_BATCH];
    size_t at = begin;
    for (; at + WIDE <= end; at += WIDE) {
        for (int k = 0; k < count; k++)
            words[k] = taken(payloads, k, count, at, WIDE);
        count_codes(counters, stride, levels, per, words, count, at);
    }
    if (at < end) {
        for (int k = 0; k < count; k++)
            words[k] = taken(payloads, k, count, at, end - at);
        count_codes(counters, stride, levels, per, words, count, at);
    }
}

INLINE void count_threes(uint8_t *counters, size_t stride, int levels,
                         const uint8_t *const *payloads, int count, size_t begin, size_t end)
{
    uint8_t opened[SV_BATCH][OPENED];
    const uint8_t *rows[SV_BATCH];
    for (size_t at = begin; at < end; at += OPENED / 8 * 3) {
        const size_t first = at / 3 * 8, left = (end - at) / 3 * 8 + ((end - at) % 3 ? 8 : 0);
        const size_t some = left < OPENED ? left : OPENED;
        for (int k = 0; k < count; k++) {
            open_codes(payloads[k], end, 3, first, some, opened[k]);
            rows[k] = opened[k];
        }
        count_in_bytes(counters + first, stride, levels, 1, rows, count, 0, some);
    }
}

static void count_levels(uint8_t *counters, size_t stride, int levels, int bits,
                         const uint8_t *const *payloads, int count, size_t begin, size_t end)
{
    if (bits == 3 && count == SV_BATCH)
        count_threes(counters, stride, levels, payloads, SV_BATCH, begin, end);
    else if (bits == 3)
        count_threes(counters, stride, levels, payloads, count, begin, end);
    else if (bits == 2 && count == SV_BATCH)
        count_in_bytes(counters, stride, levels, 4, payloads, SV_BATCH, begin, end);
    else if (bits == 4 && count == SV_BATCH)
        count_in_bytes(counters, stride, levels, 2, payloads, SV_BATCH, begin, end);
    else
        count_in_bytes(counters, stride, levels, 8 / bits, payloads, count, begin, end);
}

INLINE void widen_row(const uint8_t *counters, size_t stride, size_t per, size_t dimension,
                      uint32_t *out)
{
    const size_t whole = dimension / per;
    for (size_t i = 0; i < whole; i++)
        for (size_t s = 0; s < per; s++)
            out[per * i + s] += counters[s * stride + i];
    for (size_t s = 0; whole * per + s < dimension; s++)
        out[whole * per + s] += counters[s * stride + whole];
}

static void widen(const uint8_t *counters, size_t stride, int per, size_t dimension, uint32_t *out)
{
    if (per == 4)
        widen_row(counters, stride, 4, dimension, out);
    else if (per == 2)
        widen_row(counters, stride, 2, dimension, out);
    else
        widen_row(counters, stride, 1, dimension, out);
}

/* sum[i] += table[code i] for one payload after the other, with the roundings and the order of
   adding whole vectors. */
static void add_points(double *sum, size_t begin, size_t end, const uint8_t *const *payloads,
                       const uint8_t *bits, const double *tables, int count, size_t dimension)
{
    uint8_t codes[OPENED];
    for (size_t first = begin; first < end; first += OPENED) {
        const size_t some = end - first < OPENED ? end - first : OPENED;
        double *restrict part = sum + first;
        for (int k = 0; k < count; k++) {
            const double *table = tables + 256 * k;
            const size_t size = (dimension * bits[k] + 7) / 8;
            open_codes(payloads[k], size, bits[k], first, some, codes);
            size_t i = 0;
#if defined(SV_AVX512)
            if (bits[k] <= 4) {
                const __m512d low = _mm512_loadu_pd(table), high = _mm512_loadu_pd(table + 8);
                for (; i + 8 <= some; i += 8) {
                    const __m512i at = _mm512_cvtepu8_epi64(
                        _mm_loadl_epi64((const __m128i *)(codes + i)));
                    const __m512d point = _mm512_permutex2var_pd(low, at, high);
                    _mm512_storeu_pd(part + i, _mm512_add_pd(_mm512_loadu_pd(part + i), point));
                }
            }
#endif
            for (; i < some; i++)
                part[i] += table[codes[i]];
        }
    }
}
