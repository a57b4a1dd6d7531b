/* All kernels for the baseline instructions of the compiler's target. */
#define SV_LEVEL portable
#include "bodies.h"
