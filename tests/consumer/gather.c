/* SPDX-License-Identifier: Apache-2.0 */
/* Links the gather baseline, and the library through it. */
#include <pagedcl/attn_gather.h>
#include <pagedcl/version.h>

#include <string.h>

int main(void) {
    pagedcl_attn_gather_destroy(NULL);
    return strcmp(pagedcl_version(), PAGEDCL_VERSION_STRING) != 0;
}
