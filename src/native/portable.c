/* Every kernel for whatever the compiler takes as the least of machines. */
#define SV_LEVEL portable
#include "bodies.h"
