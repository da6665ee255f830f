/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGEDCL_EXPORT_H
#define PAGEDCL_EXPORT_H

/* Marks what the shared library exports. PAGEDCL_BUILDING is defined while the library itself is compiled. */
#if defined(PAGEDCL_STATIC)
#define PAGEDCL_API
#elif defined(_WIN32)
#ifdef PAGEDCL_BUILDING
#define PAGEDCL_API __declspec(dllexport)
#else
#define PAGEDCL_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define PAGEDCL_API __attribute__((visibility("default")))
#else
#define PAGEDCL_API
#endif

#endif
