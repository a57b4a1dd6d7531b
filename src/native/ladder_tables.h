/* The thresholds of a ladder, as Python passes them. */
#ifndef SV_LADDER_TABLES_H
#define SV_LADDER_TABLES_H

#include "native.h"

struct sv_ladder_tables {
    Py_buffer held[5];
    int num_held;
    double scale, cells_per_unit, narrow_per_unit; /* The cells are per unit of u. */
};

/* Reads a ladder's parts into `job`, all but its key and first coordinate; -1 with an exception set
   if they do not fit each other. */
int sv_hold_ladder(struct sv_ladder_tables *tables, struct sv_ladder *job, PyObject *parts);
void sv_release_ladder(struct sv_ladder_tables *tables);

/* Multiplies the ladder's own scale with a factor. */
void sv_scale_ladder(struct sv_ladder *job, const struct sv_ladder_tables *tables, double factor);

#endif
