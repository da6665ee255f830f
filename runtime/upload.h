/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small host data on its way to the device: the caller's arrays are copied into a staging buffer, which a non-blocking
 * write carries to its device buffer. There are two such pairs, and more only while writes wait for something, so that
 * no call ever has to.
 */
#ifndef PCL_UPLOAD_H
#define PCL_UPLOAD_H

#include "chain.h"

#include <stddef.h>
#include <stdint.h>

typedef struct pcl_upload_slot {
    void *staging;
    cl_mem buffer;
    size_t capacity;  /* bytes of both */
    cl_event written; /* of the write; the staging buffer is busy until then */
    pcl_fence last;   /* the last command that writes or reads the device buffer */
} pcl_upload_slot;

#define PCL_NO_SLOT SIZE_MAX

typedef struct pcl_upload {
    cl_context context;
    cl_mem_flags flags; /* of the device buffers */
    pcl_upload_slot *slots;
    size_t count;
    size_t current; /* the slot last sent; PCL_NO_SLOT: none */
    size_t next;    /* the slot that pcl_upload_begin chose */
} pcl_upload;

/* flags: CL_MEM_READ_ONLY, or CL_MEM_READ_WRITE where kernels fill in a part. */
void pcl_upload_init(pcl_upload *upload, cl_context context, cl_mem_flags flags);
void pcl_upload_release(pcl_upload *upload);

/*
 * The staging buffer of the next upload, with room for size > 0 bytes. Until pcl_upload_send the current buffer stays
 * current.
 */
pagedcl_status pcl_upload_begin(pcl_upload *upload, size_t size, void **staging);

/* Enqueues the write of the first size bytes; the buffer is now the current one. */
pagedcl_status pcl_upload_send(pcl_upload *upload, pcl_chain *chain, size_t size);

/*
 * The same in two halves, for a buffer whose rest the chain's next commands fill in: the write, into the buffer of
 * pcl_upload_next; then, behind those commands, what makes it the current one.
 */
pagedcl_status pcl_upload_write(pcl_upload *upload, pcl_chain *chain, size_t size);
cl_mem pcl_upload_next(const pcl_upload *upload);
pagedcl_status pcl_upload_accept(pcl_upload *upload, pcl_chain *chain);

/* The device buffer last sent. */
cl_mem pcl_upload_buffer(const pcl_upload *upload);

/* Lets the chain read the current buffer: orders it behind the commands that touched the buffer before. Fails when the
   upload is known to have failed. */
pagedcl_status pcl_upload_use(const pcl_upload *upload, pcl_chain *chain);

/* The chain, which used the current buffer, ends here: to be called before pcl_chain_end. */
void pcl_upload_used(pcl_upload *upload, pcl_chain *chain);

#endif
