/* The thresholds of a ladder, as Python passes them. */
#include "ladder_tables.h"

#define MAX_GAPS (1 << 24) /* In bytes; cells are numbered in single precision. */

static int aligned(const Py_buffer *view, size_t size)
{
    return (size_t)view->len % size == 0 && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

static int fits_cells(const Py_buffer *rows, const Py_buffer *gaps, Py_ssize_t levels,
                      Py_ssize_t width)
{
    return levels >= 2 && levels <= 256 && width >= levels - 1 + (levels > 17 ? 16 : 0) &&
           width <= 272 && width % 16 == 0 && aligned(gaps, 4) && aligned(rows, 4) &&
           gaps->len >= 8 && gaps->len <= MAX_GAPS && rows->len == gaps->len * 2 * width;
}

static int fits_law(const Py_buffer *first, const Py_buffer *second, Py_ssize_t levels, int is_table)
{
    if (!aligned(first, 8) || !aligned(second, 8))
        return 0;
    const Py_ssize_t count = first->len / 8;
    return second->len / 8 == (is_table ? count * levels : count) &&
           (is_table ? count >= 2 : count == levels);
}

static int fits_narrow(const Py_buffer *narrow, Py_ssize_t cells, Py_ssize_t levels)
{
    return cells >= 0 && cells <= 32 &&
           (!cells || (aligned(narrow, 2) &&
                       narrow->len == (levels - 1) * 64 * (Py_ssize_t)sizeof(int16_t)));
}

int sv_hold_ladder(struct sv_ladder_tables *tables, struct sv_ladder *job, PyObject *parts)
{
    Py_buffer *rows = &tables->held[0], *gaps = &tables->held[1], *first = &tables->held[2],
              *second = &tables->held[3], *narrow = &tables->held[4];
    Py_ssize_t levels, width, narrow_cells;
    int is_table;
    short narrow_gap;
    tables->num_held = 0;
    if (!PyTuple_Check(parts) ||
        !PyArg_ParseTuple(parts, "ddddfnny*y*iy*y*y*ndfh", &job->shift, &tables->scale,
                          &job->divisor, &tables->cells_per_unit, &job->origin, &levels, &width,
                          rows, gaps, &is_table, first, second, narrow, &narrow_cells,
                          &tables->narrow_per_unit, &job->narrow_origin, &narrow_gap))
        return -1;
    tables->num_held = 5;
    if (!fits_cells(rows, gaps, levels, width) || !fits_law(first, second, levels, is_table) ||
        !fits_narrow(narrow, narrow_cells, levels)) {
        sv_release_ladder(tables);
        PyErr_SetString(PyExc_ValueError, "the ladder's parts do not fit each other");
        return -1;
    }
    job->narrow = narrow->buf, job->narrow_cells = (size_t)narrow_cells;
    job->narrow_gap = narrow_gap;
    job->levels = (size_t)levels, job->width = (size_t)width;
    job->cells = (size_t)gaps->len / sizeof(float) - 1;
    job->rows = rows->buf, job->gaps = gaps->buf;
    job->points = job->knots = first->buf, job->weights = job->thresholds = second->buf;
    job->num_knots = is_table ? (size_t)first->len / sizeof(double) : 0;
    sv_scale_ladder(job, tables, 1.0);
    return 0;
}

void sv_release_ladder(struct sv_ladder_tables *tables)
{
    while (tables->num_held)
        PyBuffer_Release(&tables->held[--tables->num_held]);
}

void sv_scale_ladder(struct sv_ladder *job, const struct sv_ladder_tables *tables, double factor)
{
    job->scale = tables->scale * factor;
    const double per_x = job->scale / job->divisor;
    job->cells_per_unit = (float)(tables->cells_per_unit * per_x);
    job->narrow_per_unit = (float)(tables->narrow_per_unit * per_x);
}
