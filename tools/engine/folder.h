/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a model folder. */
#ifndef ENGINE_FOLDER_H
#define ENGINE_FOLDER_H

#include "tool_error.h"

#include <jansson.h>

enum { FOLDER_MAX_PATH = 4096 };

/* folder/name */
bool folder_path(const char *folder, const char *name, char path[FOLDER_MAX_PATH], tool_error *error);

bool folder_has(const char *folder, const char *name);

/* The JSON object in the file folder/name, for json_decref. NULL with an error when there is none. */
json_t *folder_read_json(const char *folder, const char *name, tool_error *error);

#endif
