/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call returns, and the sentence that explains the last failure.
 *
 * Every function that can fail returns a pagedcl_status. A failed call changes nothing that the caller can see: no
 * table, no counter, no block, no output buffer. The library never prints, exits or aborts.
 */
#ifndef PAGEDCL_STATUS_H
#define PAGEDCL_STATUS_H

#include <pagedcl/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text) */
#define PAGEDCL_STATUS_LIST(X)                                                     \
    X(SUCCESS, 0, "success")                                                       \
    X(INVALID_ARGUMENT, 1, "an argument is not valid")                             \
    X(INVALID_HANDLE, 2, "the handle names nothing that lives")                    \
    X(INVALID_HEADS, 3, "the head counts do not go together")                      \
    X(INVALID_LENGTH, 4, "a sequence length is not valid")                         \
    X(INVALID_BLOCK, 5, "a block table entry is not valid")                        \
    X(INVALID_SLOT, 6, "a slot is not valid")                                      \
    X(CAPACITY, 7, "the tokens do not fit the block table")                        \
    X(BUFFER_TOO_SMALL, 8, "a buffer is too small for its shape")                  \
    X(SIZE_OVERFLOW, 9, "a size does not fit 64 bits")                             \
    X(UNSUPPORTED, 10, "not supported")                                            \
    X(OUT_OF_BLOCKS, 11, "no free block is left")                                  \
    X(OUT_OF_MEMORY, 12, "out of host memory")                                     \
    X(OUT_OF_DEVICE_MEMORY, 13, "out of device memory")                            \
    X(POOL_TOO_LARGE, 14, "the pool does not fit the device")                      \
    X(NO_PLATFORM, 15, "no OpenCL driver is installed")                            \
    X(NO_DEVICE, 16, "no OpenCL device matches")                                   \
    X(BUILD_FAILED, 17, "a kernel did not build")                                  \
    X(DEVICE_LOST, 18, "the device is lost; destroy every object of this context") \
    X(OPENCL_ERROR, 19, "an OpenCL call failed")                                   \
    X(IO_ERROR, 21, "a file could not be read or written")                         \
    X(NEVER_FITS, 22, "larger than the whole pool")                                \
    X(NOT_READY, 23, "the sequence is not ready for that")                         \
    X(BAD_FILE, 24, "the file is damaged or of another kind")

typedef enum pagedcl_status {
#define PAGEDCL_STATUS_ENUM(name, value, text) PAGEDCL_##name = value,
    PAGEDCL_STATUS_LIST(PAGEDCL_STATUS_ENUM)
#undef PAGEDCL_STATUS_ENUM
} pagedcl_status;

/* "PAGEDCL_INVALID_BLOCK" for PAGEDCL_INVALID_BLOCK; "PAGEDCL_UNKNOWN" for a value that is no status. */
PAGEDCL_API const char *pagedcl_status_name(pagedcl_status status);

/* One short English sentence without a full stop. */
PAGEDCL_API const char *pagedcl_status_text(pagedcl_status status);

/*
 * Names what was wrong in the last call of this thread that failed, and what to do about it: the argument, the
 * sequence, the limit, the OpenCL code, or the first lines of a build log. Several lines for a failed build, else
 * one. "" when no call failed. The text belongs to the library and holds until the next failure on this thread.
 */
PAGEDCL_API const char *pagedcl_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
