/* SPDX-License-Identifier: Apache-2.0 */
#include "json_text.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text(const char *text) {
    json_t *json = json_string(text);
    if (json)
        return json;
    size_t length = strlen(text);
    char *ascii = malloc(length + 1);
    if (!ascii)
        return NULL;
    for (size_t i = 0; i <= length; i++)
        ascii[i] = (char)((unsigned char)text[i] < 0x80 ? text[i] : '?');
    json = json_string(ascii);
    free(ascii);
    return json;
}
