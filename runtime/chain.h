/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of one call, in order on any queue. On an in-order queue the first waits for the caller's events and the
 * rest follows; on an out-of-order queue each also waits for the one before.
 */
#ifndef PCL_CHAIN_H
#define PCL_CHAIN_H

#include <pagedcl/device.h>

#include <stdbool.h>

typedef struct pcl_chain {
    const pagedcl_device *device;
    cl_command_queue queue;
    bool out_of_order;
    cl_uint num_wait;
    const cl_event *wait;  /* of the next command: the caller's, then &last or none */
    cl_event last;         /* of the last command; owned */
    pagedcl_status status; /* the first failure of a function that returns none; then nothing more is enqueued */
} pcl_chain;

/*
 * Begins a chain on `queue`, NULL for the device's. Errors: INVALID_ARGUMENT (events), OPENCL_ERROR; then nothing needs
 * to be undone.
 */
pagedcl_status pcl_chain_begin(pcl_chain *chain, const pagedcl_device *device, cl_command_queue queue,
                               cl_uint num_events, const cl_event *events);

/* One command each. size and offset are in bytes, and size is not 0; local 0 leaves the work-group to the driver. */
pagedcl_status pcl_chain_launch(pcl_chain *chain, cl_kernel kernel, cl_uint dimensions, const size_t *global,
                                const size_t *local);
pagedcl_status pcl_chain_write(pcl_chain *chain, cl_mem buffer, size_t offset, size_t size, const void *from);
pagedcl_status pcl_chain_read(pcl_chain *chain, cl_mem buffer, size_t offset, size_t size, void *to);

/* Makes the rest of the chain wait for an event too, NULL for none. */
pagedcl_status pcl_chain_wait(pcl_chain *chain, cl_event event);

/*
 * The event of the last command so far, the caller's to release; NULL when there is none. An event that cannot be
 * retained is given away all the same, so that what it guards stays guarded, and the chain has failed.
 */
cl_event pcl_chain_last(pcl_chain *chain);

/*
 * Ends the chain and returns `status`, that of its commands, or what else failed. On success event, when not NULL,
 * becomes an event that covers all commands, the caller's to release, and the queue is flushed, so that others may
 * wait for it.
 */
pagedcl_status pcl_chain_end(pcl_chain *chain, pagedcl_status status, cl_event *event);

/* How far an event's command is: CL_QUEUED to CL_COMPLETE, or below 0 when it failed. */
pagedcl_status pcl_event_state(cl_event event, cl_int *state);

/* The last command on something that later calls use too, maybe on other queues. All zero: none. */
typedef struct pcl_fence {
    cl_event last;          /* owned */
    cl_command_queue queue; /* where it is; owned */
} pcl_fence;

/* Puts the rest of the chain behind the fence, whose command may have failed. One in-order queue needs no command for that. */
pagedcl_status pcl_fence_wait(const pcl_fence *fence, pcl_chain *chain);

/* Moves the fence to the chain's last command, if it has one. */
void pcl_fence_set(pcl_fence *fence, pcl_chain *chain);
void pcl_fence_release(pcl_fence *fence);

#endif
