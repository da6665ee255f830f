/* SPDX-License-Identifier: Apache-2.0 */
/* How a struct that the caller fills begins: its size is told, and everything else is 0, which means the default. */
#ifndef PAGEDCL_INIT_H
#define PAGEDCL_INIT_H

#ifdef __cplusplus
#define PAGEDCL_INIT(type)               \
    []() -> type {                       \
        type made = type();              \
        made.struct_size = sizeof(type); \
        return made;                     \
    }()
#else
#define PAGEDCL_INIT(type) \
    { .struct_size = sizeof(type) }
#endif

#endif
