/* Codes of 1 to 32 bits, packed without gaps: code i takes bits i b ... i b + b - 1, lowest first.

Eight codes of b <= 8 bits take b bytes, so they are read and written as one word of eight bytes. */

#if defined(SV_AVX512)
#define REGISTER 64
#elif defined(SV_AVX2)
#define REGISTER 32
#else
#define REGISTER 16 /* Compilers compare wider vectors byte by byte. */
#endif

typedef uint8_t vb __attribute__((vector_size(REGISTER)));
typedef uint64_t vq __attribute__((vector_size(REGISTER)));
/* The same types without alignment. */
typedef uint8_t vb_any __attribute__((vector_size(REGISTER), aligned(1), may_alias));
typedef uint64_t vq_any __attribute__((vector_size(REGISTER), aligned(1), may_alias));

#define WIDE ((size_t)REGISTER) /* bytes */
#define EACH_BYTE 0x0101010101010101u

/* Reads up to eight bytes as a little-endian number; missing bytes are zero. */
INLINE uint64_t word_of(const uint8_t *bytes, size_t count)
{
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++)
        word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

INLINE uint64_t word_at(const uint8_t *bytes)
{
#if defined(SV_AVX2) || defined(SV_AVX512) || defined(SV_NEON)
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
#else
    return word_of(bytes, 8);
#endif
}

INLINE void put_word(uint8_t *bytes, uint64_t word)
{
#if defined(SV_AVX2) || defined(SV_AVX512) || defined(SV_NEON)
    memcpy(bytes, &word, sizeof word);
#else
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(word >> (8 * i));
#endif
}

INLINE void put_some(uint8_t *bytes, uint64_t word, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(word >> (8 * i));
}

/* Moves the upper halves of groups of 2 `by` codes up, to where whole bytes would have them, or back
   down: spreading halves four, two and one code at a time puts every code into its byte. */
INLINE uint64_t halves_moved(uint64_t word, int bits, int by, int up)
{
    const uint64_t each = by == 4 ? 1 : by == 2 ? 0x100000001u : 0x1000100010001u;
    const uint64_t lower = (((uint64_t)1 << (by * bits)) - 1) * each, upper = lower << (8 * by);
    const int distance = by * (8 - bits);
    return (word & lower) | (up ? word << distance & upper : (word & upper) >> distance);
}

/* Spreads eight adjacent codes over a byte each, and back. */
INLINE uint64_t spread_bits(uint64_t packed, int bits)
{
#if defined(SV_AVX2) || defined(SV_AVX512)
    return _pdep_u64(packed, EACH_BYTE * ((1u << bits) - 1));
#else
    for (int by = 4; by; by /= 2)
        packed = halves_moved(packed, bits, by, 1);
    return packed;
#endif
}

INLINE uint64_t gathered_bits(uint64_t codes, int bits)
{
#if defined(SV_AVX2) || defined(SV_AVX512)
    return _pext_u64(codes, EACH_BYTE * ((1u << bits) - 1));
#else
    for (int by = 1; by <= 4; by *= 2)
        codes = halves_moved(codes, bits, by, 0);
    return codes;
#endif
}

/* Unpacks codes first ... first + count - 1 of up to 8 bits; `first` is a multiple of 8, and so is
   the capacity of `out`. Beyond the payload's end codes are zero. */
INLINE void open_codes(const uint8_t *payload, size_t size, int bits, size_t first, size_t count,
                       uint8_t *out)
{
    size_t at = first / 8 * (size_t)bits;
    for (size_t i = 0; i < count; i += 8, at += (size_t)bits) {
        const uint64_t packed =
            at + 8 <= size ? word_at(payload + at) : word_of(payload + at, size - at);
        put_word(out + i, spread_bits(packed, bits));
    }
}

#define OPENED 512 /* The codes that are unpacked at once, into a buffer that stays in L1. */

static void unpack8(const uint8_t *payload, size_t count, int bits, uint8_t *out)
{
    const size_t whole = count & ~(size_t)7, size = (count * (size_t)bits + 7) / 8;
    open_codes(payload, size, bits, 0, whole, out);
    if (whole < count) {
        uint8_t last[8];
        open_codes(payload, size, bits, whole, 8, last);
        memcpy(out + whole, last, count - whole);
    }
}

/* Returns the OR of all codes, which shows whether one of them has too many bits. */
static uint32_t pack8(const uint8_t *codes, size_t count, int bits, uint8_t *out)
{
    const size_t size = (count * (size_t)bits + 7) / 8;
    uint64_t seen = 0;
    size_t i = 0, at = 0;
    /* Eight bytes are written although only `bits` are used; the next write replaces the rest. */
    for (; i + 8 <= count && at + 8 <= size; i += 8, at += (size_t)bits) {
        const uint64_t word = word_at(codes + i);
        seen |= word;
        put_word(out + at, gathered_bits(word, bits));
    }
    for (; i < count; i += 8, at += (size_t)bits) {
        const uint64_t word = word_of(codes + i, count - i < 8 ? count - i : 8);
        seen |= word;
        const size_t rest = size - at < (size_t)bits ? size - at : (size_t)bits;
        put_some(out + at, gathered_bits(word, bits), rest);
    }
    for (int by = 32; by >= 8; by /= 2)
        seen |= seen >> by;
    return (uint32_t)(seen & 0xff);
}

static uint32_t largest8(const uint8_t *payload, size_t count, int bits)
{
    const size_t size = (count * (size_t)bits + 7) / 8;
    uint8_t codes[OPENED];
    vb largest = {0};
    for (size_t first = 0; first < count; first += OPENED) {
        const size_t some = count - first < OPENED ? count - first : OPENED;
        if (some < OPENED)
            memset(codes, 0, sizeof codes);
        open_codes(payload, size, bits, first, some, codes);
        for (size_t i = 0; i < OPENED; i += WIDE) {
            const vb found = *(const vb_any *)(codes + i);
            const vb more = (vb)(found > largest);
            largest = (found & more) | (largest & ~more);
        }
    }
    uint32_t most = 0;
    for (size_t l = 0; l < WIDE; l++)
        most = largest[l] > most ? largest[l] : most;
    return most;
}

/* Packs the lowest `bits` bits, at most 32, of each number. */
static void pack_low(const int32_t *restrict numbers, size_t count, int bits, uint8_t *restrict out)
{
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    uint64_t held = 0;
    int left = 0;
    if (bits == 16 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) {
        for (size_t i = 0; i < count; i++) {
            const uint16_t code = (uint16_t)numbers[i];
            memcpy(out + 2 * i, &code, sizeof code);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        held |= ((uint64_t)(uint32_t)numbers[i] & mask) << left;
        left += bits;
        if (left >= 32) {
            put_some(out, held, 4);
            out += 4, held >>= 32, left -= 32;
        }
    }
    put_some(out, held, (size_t)(left + 7) / 8);
}

/* Wider codes are packed one after the other. */
#define WIDER(type, name)                                                                          \
    static void unpack##name(const uint8_t *payload, size_t count, int bits, type *out)            \
    {                                                                                              \
        const uint64_t mask = ((uint64_t)1 << bits) - 1;                                           \
        uint64_t held = 0;                                                                         \
        int left = 0;                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            for (; left < bits; left += 8)                                                         \
                held |= (uint64_t)*payload++ << left;                                              \
            out[i] = (type)(held & mask);                                                          \
            held >>= bits, left -= bits;                                                           \
        }                                                                                          \
    }                                                                                              \
    static uint32_t pack##name(const type *codes, size_t count, int bits, uint8_t *out)            \
    {                                                                                              \
        const uint64_t mask = ((uint64_t)1 << bits) - 1;                                           \
        uint64_t held = 0;                                                                         \
        uint32_t seen = 0;                                                                         \
        int left = 0;                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            seen |= codes[i];                                                                      \
            held |= (codes[i] & mask) << left;                                                     \
            for (left += bits; left >= 8; left -= 8, held >>= 8)                                   \
                *out++ = (uint8_t)held;                                                            \
        }                                                                                          \
        if (left)                                                                                  \
            *out = (uint8_t)held;                                                                  \
        return seen;                                                                               \
    }
WIDER(uint16_t, 16)
WIDER(uint32_t, 32)
#undef WIDER
