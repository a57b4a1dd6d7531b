/* All kernels, compiled for the level of the file that includes this. */
#include "level.h"

#include "sampling_body.h"
#include "server_body.h"
#include "rows_body.h"
#include "keys_body.h"
