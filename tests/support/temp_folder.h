/* SPDX-License-Identifier: Apache-2.0 */
/* A folder that lasts as long as a test. */
#ifndef TEMP_FOLDER_H
#define TEMP_FOLDER_H

/* The path of a new, empty folder. */
char *temp_folder_create(void);

/* Removes the folder with all that is in it, and frees the path. */
void temp_folder_remove(char *path);

#endif
