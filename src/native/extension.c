/* Further random bits of single coordinates, and the decisions that need them, which are rare. */
#include "extension.h"

#include <math.h>

static uint32_t rotated(uint32_t x, int by) { return (x << by) | (x >> (32 - by)); }

static void quarter_round(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d)
{
    *a += *b, *d = rotated(*d ^ *a, 16);
    *c += *d, *b = rotated(*b ^ *c, 12);
    *a += *b, *d = rotated(*d ^ *a, 8);
    *c += *d, *b = rotated(*b ^ *c, 7);
}

static uint32_t swapped(uint32_t x)
{
    return (x >> 24) | ((x >> 8) & 0xff00) | ((x << 8) & 0xff0000) | (x << 24);
}

static void block(const uint32_t key[8], uint32_t counter, uint64_t nonce, uint32_t x[16])
{
    const uint32_t start[16] = {
        0x61707865, 0x3320646e, 0x79622d32,      0x6b206574,
        key[0],     key[1],     key[2],          key[3],
        key[4],     key[5],     key[6],          key[7],
        counter,    (uint32_t)nonce, (uint32_t)(nonce >> 32), 0,
    };
    for (int i = 0; i < 16; i++)
        x[i] = start[i];
    for (int round = 0; round < 10; round++) {
        quarter_round(&x[0], &x[4], &x[8], &x[12]);
        quarter_round(&x[1], &x[5], &x[9], &x[13]);
        quarter_round(&x[2], &x[6], &x[10], &x[14]);
        quarter_round(&x[3], &x[7], &x[11], &x[15]);
        quarter_round(&x[0], &x[5], &x[10], &x[15]);
        quarter_round(&x[1], &x[6], &x[11], &x[12]);
        quarter_round(&x[2], &x[7], &x[8], &x[13]);
        quarter_round(&x[3], &x[4], &x[9], &x[14]);
    }
    for (int i = 0; i < 16; i++)
        x[i] += start[i];
}

uint64_t sv_extension(const uint32_t key[8], uint64_t coordinate)
{
    uint32_t x[16];
    block(key, 0, coordinate + 1, x);
    /* The words of the stream are little-endian; the number that they form is big-endian. */
    return ((uint64_t)swapped(x[0]) << 32) | swapped(x[1]);
}

uint32_t sv_draw(const uint32_t key[8], int bits, uint64_t coordinate)
{
    const uint64_t draws = 512 / (uint64_t)bits, tile = coordinate / (SV_TILE_BLOCKS * draws);
    const uint64_t rest = coordinate % (SV_TILE_BLOCKS * draws), k = rest / SV_TILE_BLOCKS;
    uint32_t x[16];
    block(key, (uint32_t)(SV_TILE_BLOCKS * tile + rest % SV_TILE_BLOCKS), 0, x);
    return bits == 32 ? x[k] : (x[k / 2] >> 16 * (k % 2)) & 0xffff;
}

/* The number 0.word,extension below 1, truncated by less than 2^-52. */
static double uniform(const uint32_t key[8], uint32_t word, size_t i)
{
    return ((double)word + (double)sv_extension(key, i) * 0x1p-64) * 0x1p-16;
}

void sv_leave_open(struct sv_open *open, size_t i)
{
    if (open->count < open->capacity)
        open->coordinates[open->count] = (int64_t)i;
    open->count++;
}

/* The error of `threshold` is four roundings and one unit of exp, each 2^-52 of at most 1. */
int sv_decided_bit(const struct sv_one_bit *job, double x, uint32_t word, size_t i,
                   struct sv_open *open)
{
    const double tilt = x * job->scale / job->stddev;
    const double small = exp(-2.0 * fabs(tilt));
    const double threshold = (tilt > 0.0 ? small : 1.0) / (1.0 + small);
    const double distance = uniform(job->key, word, i) - threshold;
    if (!(fabs(distance) > 0x1p-49))
        sv_leave_open(open, i);
    return distance > 0.0;
}

/* The margins are those of the numpy samplers, with twice the truncation of the uniform number. */
static int family_code(const struct sv_ladder *job, double tilt, double share, int *decided)
{
    const size_t levels = job->levels;
    double masses[256], largest = 0.0, top = tilt * job->points[0], total = 0.0;
    for (size_t j = 0; j < levels; j++) {
        const double exponent = tilt * job->points[j];
        top = exponent > top ? exponent : top;
        largest = fabs(exponent) > largest ? fabs(exponent) : largest;
    }
    for (size_t j = 0; j < levels; j++)
        total += masses[j] = job->weights[j] * exp(tilt * job->points[j] - top);
    const double margin = (2.0 * largest + (double)levels / 2.0 + 4.0) * 0x1p-50 * total;
    const double place = share * total;
    double below = 0.0;
    int code = 0;
    *decided = 1;
    for (size_t j = 0; j + 1 < levels; j++) {
        below += masses[j];
        const double distance = place - below;
        code += distance >= 0.0;
        if (!(fabs(distance) > margin))
            *decided = 0;
    }
    return code;
}

static int table_code(const struct sv_ladder *job, double u, double uniform, int *decided)
{
    const double first = job->knots[0], last = job->knots[job->num_knots - 1];
    const double x = u < first ? first : u > last ? last : u;
    size_t k = 0;
    while (k + 2 < job->num_knots && x >= job->knots[k + 1])
        k++;
    const double share = (x - job->knots[k]) / (job->knots[k + 1] - job->knots[k]);
    const double rest = 1.0 - share;
    const double *row = job->thresholds + k * job->levels, *next = row + job->levels;
    int code = 0;
    *decided = 1;
    for (size_t j = 0; j + 1 < job->levels; j++) {
        const double distance = uniform - (rest * row[j] + share * next[j]);
        code += distance >= 0.0;
        if (!(fabs(distance) > 0x1p-48))
            *decided = 0;
    }
    return code;
}

uint8_t sv_decided_code(const struct sv_ladder *job, double x, uint32_t word, size_t i,
                        struct sv_open *open)
{
    const double share = uniform(job->key, word, i), u = (x - job->shift) * job->scale / job->divisor;
    int decided;
    const int code = job->num_knots ? table_code(job, u, share, &decided)
                                    : family_code(job, u, share, &decided);
    if (!decided)
        sv_leave_open(open, i);
    return (uint8_t)code;
}
