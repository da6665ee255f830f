/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool folder_path(const char *folder, const char *name, char path[FOLDER_MAX_PATH], tool_error *error) {
    int length = snprintf(path, FOLDER_MAX_PATH, "%s/%s", folder, name);
    return (length >= 0 && length < FOLDER_MAX_PATH) || tool_fail(error, "the name of the model folder is too long");
}

bool folder_has(const char *folder, const char *name) {
    char path[FOLDER_MAX_PATH];
    tool_error ignored;
    struct stat status;
    return folder_path(folder, name, path, &ignored) && stat(path, &status) == 0;
}

json_t *folder_read_json(const char *folder, const char *name, tool_error *error) {
    char path[FOLDER_MAX_PATH];
    struct stat status;
    json_t *root = NULL;
    json_error_t problem;
    if (!folder_path(folder, name, path, error))
        return NULL;
    if (stat(path, &status) != 0)
        tool_fail(error, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(status.st_mode)) /* a pipe would block */
        tool_fail(error, "%s: is not a regular file", path);
    else if ((root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem)) == NULL)
        tool_fail(error, "%s: line %d: %s", path, problem.line, problem.text);
    else if (!json_is_object(root))
        tool_fail(error, "%s: is not a JSON object", path);
    else
        return root;
    json_decref(root);
    return NULL;
}
