/* SPDX-License-Identifier: Apache-2.0 */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>

/*
 * The text as a JSON string. Text from outside (a driver's, a path) need not be UTF-8: if it is not, its bytes beyond
 * ASCII become '?'. NULL when out of memory.
 */
json_t *json_text(const char *text);

#endif
