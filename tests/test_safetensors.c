/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"
#include "support/case_writer.h"
#include "support/temp_folder.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder;
static char path[256]; /* of the file that the test writes */

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/file.safetensors", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

/* A file of this header, which the file says to be `length` bytes long, and data_size bytes of data. */
static void write_with_length(uint64_t length, const char *header, size_t data_size) {
    size_t header_size = strlen(header);
    unsigned char *bytes = calloc(1, 8 + header_size + data_size);
    cr_assert_not_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < data_size; i++)
        bytes[8 + header_size + i] = (unsigned char)i;
    case_writer_bytes(path, bytes, 8 + header_size + data_size);
    free(bytes);
}

static void write_file(const char *header, size_t data_size) {
    write_with_length(strlen(header), header, data_size);
}

/* The file is refused by one line that names it and says `reason`. */
static void expect_refused(const char *what, const char *reason) {
    char error[512] = "";
    safetensors *file = safetensors_open(path, error, sizeof error);
    cr_expect_null(file, "%s: accepted", what);
    cr_expect_eq(strncmp(error, path, strlen(path)), 0, "%s: the message does not name the file: %s", what, error);
    cr_expect_not_null(strstr(error, reason), "%s: expected \"%s\" in: %s", what, reason, error);
    for (const char *c = error; *c; c++)
        cr_expect((unsigned char)*c >= 0x20, "%s: a control character in: %s", what, error);
    safetensors_close(file);
}

TestSuite(safetensors, .init = make_folder, .fini = remove_folder);

static const char good_header[] = "{\"__metadata__\":{\"case\":\"1\",\"op\":\"varlen\"},"
                                  "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                                  "\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                                  "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]},"
                                  "\"none\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[28,28]},"
                                  "\"bytes\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[36,39]}}   ";

Test(safetensors, reads) {
    write_file(good_header, 39);
    char error[256];
    safetensors *file = safetensors_open(path, error, sizeof error);
    cr_assert_not_null(file, "%s", error);
    cr_expect_eq(safetensors_count(file), 5);
    cr_expect_str_eq(safetensors_at(file, 0)->name, "b");
    cr_expect_str_eq(safetensors_at(file, 4)->name, "bytes");
    cr_expect_str_eq(safetensors_metadata(file, "op"), "varlen");
    cr_expect_null(safetensors_metadata(file, "none"));
    cr_expect_null(safetensors_find(file, "__metadata__"));

    const safetensors_tensor *b = safetensors_find(file, "b");
    cr_assert_not_null(b);
    cr_expect_eq(b->dtype, SAFETENSORS_F32);
    cr_expect_str_eq(b->dtype_name, "F32");
    cr_expect_eq(b->num_dims, 2);
    cr_expect_eq(b->shape[0], 2);
    cr_expect_eq(b->shape[1], 3);
    cr_expect_eq(b->num_elements, 6);
    cr_expect_eq(b->num_bytes, 24);
    cr_expect_eq(((const unsigned char *)b->data)[0], 4);
    cr_expect_eq(((const unsigned char *)b->data)[23], 27);

    const safetensors_tensor *scalar = safetensors_find(file, "scalar");
    cr_expect(scalar && scalar->num_dims == 0 && scalar->num_elements == 1 && scalar->num_bytes == 8);
    const safetensors_tensor *none = safetensors_find(file, "none");
    cr_expect(none && none->num_elements == 0 && none->num_bytes == 0);
    const safetensors_tensor *bytes = safetensors_find(file, "bytes");
    cr_expect(bytes && bytes->dtype == SAFETENSORS_OTHER && bytes->num_bytes == 3);
    safetensors_close(file);
}

Test(safetensors, reads_no_tensors) {
    write_file("{}", 0);
    char error[256];
    safetensors *file = safetensors_open(path, error, sizeof error);
    cr_assert_not_null(file, "%s", error);
    cr_expect_eq(safetensors_count(file), 0);
    cr_expect_null(safetensors_metadata(file, "op"));
    safetensors_close(file);
}

Test(safetensors, refuses_what_is_no_file) {
    expect_refused("missing", "No such file");
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_refused("folder", "not a regular file");
    cr_assert_eq(rmdir(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refused("FIFO", "not a regular file");
}

Test(safetensors, refuses_truncated_files) {
    case_writer_bytes(path, "", 0);
    expect_refused("empty", "too short");
    case_writer_bytes(path, "\2\0\0\0\0\0\0", 7);
    expect_refused("7 bytes", "too short");
    write_with_length(3, "{}", 0);
    expect_refused("header cut", "truncated");
    write_with_length(UINT64_C(1) << 63, "{}", 0);
    expect_refused("header of 2^63 bytes", "truncated");
    write_with_length(UINT64_MAX, "{}", 0);
    expect_refused("header of 2^64 - 1 bytes", "truncated");
    write_with_length(0, "", 0);
    expect_refused("header of 0 bytes", "not JSON");
    write_file(good_header, 38);
    expect_refused("data cut", "truncated");
    write_file(good_header, 40);
    expect_refused("data too long", "1 bytes at the end");
}

Test(safetensors, refuses_a_header_beyond_the_limit) {
    uint64_t length = 100000001;
    write_with_length(length, "{}", 0);
    cr_assert_eq(truncate(path, (off_t)(8 + length)), 0); /* a hole: takes no space */
    expect_refused("header of 100 MB and a byte", "at most 100000000");
}

Test(safetensors, refuses_hostile_headers) {
    static const struct {
        const char *what;
        const char *header;
        size_t data_size;
        const char *reason;
    } rows[] = {
        {"array", "[]", 0, "not a JSON object"},
        {"number", "12", 0, "not JSON"},
        {"no JSON", "{\"a\":", 0, "not JSON"},
        {"something behind", "{}{}", 0, "not JSON"},
        {"bad UTF-8", "{\"\xff\":1}", 0, "not JSON"},
        {"metadata is a list", "{\"__metadata__\":[]}", 0, "__metadata__"},
        {"metadata holds a number", "{\"__metadata__\":{\"case\":1}}", 0, "not a string"},
        {"two of one name",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "duplicate"},
        {"tensor is a number", "{\"a\":1}", 0, "not described"},
        {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype"},
        {"dtype is a number", "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype"},
        {"unknown dtype", "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
        {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "no shape"},
        {"shape is an object", "{\"a\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1, "no shape"},
        {"negative dimension", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
        {"two negative dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1,-1],\"data_offsets\":[0,1]}}", 1,
         "dimension 0"},
        {"fractional dimension", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
        {"dimension beyond 64 bits",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551617],\"data_offsets\":[0,1]}}", 1, "not JSON"},
        {"dimension 2^42 + 1", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4398046511105],\"data_offsets\":[0,1]}}", 1,
         "do not make"},
        {"product 2^64", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "beyond 2^62"},
        {"product 2^63", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2147483648,4294967296],\"data_offsets\":[0,0]}}", 0,
         "beyond 2^62"},
        {"2^62 elements of 4 bytes",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483648,2147483648],\"data_offsets\":[0,0]}}", 0, "do not make"},
        {"nine dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "9 dimensions"},
        {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets"},
        {"three offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "data_offsets"},
        {"offsets of strings", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",\"1\"]}}", 1,
         "data_offsets"},
        {"negative offset", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "not within"},
        {"offsets reversed", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "not within"},
        {"offset behind the file", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 1, "not within"},
        {"offset 2^63 - 1",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9223372036854775806,9223372036854775807]}}", 1,
         "not within"},
        {"too few bytes", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "do not make"},
        {"overlap",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "does not begin where"},
        {"the same bytes twice",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "does not begin where"},
        {"gap",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, "does not begin where"},
        {"gap at the begin", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
         "does not begin where"},
        {"line feed in a name", "{\"a\\n\\u001b[31m\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "a??[31m"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_file(rows[i].header, rows[i].data_size);
        expect_refused(rows[i].what, rows[i].reason);
    }
}

/* `head`, `unit` repeated `count` times, `tail`. */
static void write_repeated(const char *head, const char *unit, size_t count, const char *tail) {
    size_t unit_size = strlen(unit);
    char *header = malloc(strlen(head) + unit_size * count + strlen(tail) + 1);
    cr_assert_not_null(header);
    char *end = stpcpy(header, head);
    for (size_t i = 0; i < count; i++)
        end = stpcpy(end, unit);
    stpcpy(end, tail);
    write_file(header, 1);
    free(header);
}

Test(safetensors, refuses_huge_headers) {
    write_repeated("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1", ",1", 999999, "]}}");
    expect_refused("a million dimensions", "1000000 dimensions");
    write_repeated("{\"a\":", "[", 1000000, "");
    expect_refused("a million levels", "not JSON");
    write_repeated("{\"", "a", 1000000, "\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    expect_refused("a name of a million letters", "unknown dtype");
}

Test(safetensors, message_fits_its_buffer) {
    char error[8] = "1234567";
    cr_expect_null(safetensors_open("/nonexistent/file", error, sizeof error));
    cr_expect_str_eq(error, "/nonexi");
    cr_expect_null(safetensors_open("/nonexistent/file", NULL, 0));
}

/* Whatever the bytes are: refused, or every byte of every tensor can be read (a sanitizer or the MMU objects). */
Test(safetensors, survives_random_damage) {
    size_t header_size = sizeof good_header - 1;
    size_t size = 8 + header_size + 39;
    write_file(good_header, 39);
    unsigned char *good = malloc(size);
    unsigned char *bad = malloc(size);
    cr_assert(good && bad);
    FILE *stream = fopen(path, "rb");
    cr_assert_not_null(stream);
    cr_assert_eq(fread(good, 1, size, stream), size);
    fclose(stream);

    static const char letters[] = "0123456789[]{}\",:-eF\\";
    uint32_t random = 1;
    int opened = 0;
    int refused = 0;
    for (int round = 0; round < 5000; round++) {
        memcpy(bad, good, size);
        random = random * 1664525 + 1013904223;
        int flips = 1 + (int)(random >> 16) % 4;
        for (int i = 0; i < flips; i++) {
            random = random * 1664525 + 1013904223;
            size_t at = (random >> 8) % (8 + header_size);
            random = random * 1664525 + 1013904223;
            bad[at] = random >> 31 ? (unsigned char)(random >> 16) : (unsigned char)letters[(random >> 8) % 21];
        }
        case_writer_bytes(path, bad, size - (round % 8 == 0 ? (random >> 8) % size : 0));
        char error[128];
        safetensors *file = safetensors_open(path, error, sizeof error);
        file ? opened++ : refused++;
        for (size_t t = 0; file && t < safetensors_count(file); t++) {
            const safetensors_tensor *tensor = safetensors_at(file, t);
            unsigned sum = 0;
            for (size_t i = 0; i < tensor->num_bytes; i++)
                sum += ((const unsigned char *)tensor->data)[i];
            cr_assert_leq(sum, 255u * tensor->num_bytes);
        }
        safetensors_close(file);
    }
    cr_expect(opened > 0 && refused > opened, "%d opened, %d refused: the damage is too weak", opened, refused);
    free(good);
    free(bad);
}
