/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a file of sequences, damaged on purpose: with checksums that fit again, the numbers themselves are tried. */
#ifndef SAVED_FILE_H
#define SAVED_FILE_H

#include <stddef.h>
#include <stdint.h>

/* The tokens that the first sequence has in a group; NULL when the manifest does not lead to them inside the file. */
unsigned char *saved_file_data(unsigned char *bytes, size_t size, int group, size_t token_bytes, int64_t *num_tokens);

/* Puts the checksum of these tokens right. */
void saved_file_seal_data(unsigned char *bytes, size_t size, int group, size_t token_bytes);

/* Puts the magic and the checksums of head, manifest and tail right. */
void saved_file_seal(unsigned char *bytes, size_t size, int num_groups);

#endif
