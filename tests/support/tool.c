/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "tool.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { MAX_ARGS = 256, MAX_ENV = 512 };

static char *read_all(FILE *file) {
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    cr_assert_geq(size, 0);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    cr_assert_not_null(text);
    cr_assert_eq(fread(text, 1, (size_t)size, file), (size_t)size);
    text[size] = '\0';
    fclose(file);
    return text;
}

static int has_name_of(const char *entry, const char *other) {
    size_t length = strcspn(other, "=") + 1;
    return strncmp(entry, other, length) == 0;
}

/* The environment of the test where `env` has no other value. */
static void merge_environment(const char *const *env, const char **merged) {
    size_t count = 0;
    for (size_t i = 0; env[i]; i++)
        merged[count++] = env[i];
    size_t num_own = count;
    for (char **entry = environ; *entry; entry++) {
        size_t i = 0;
        while (i < num_own && !has_name_of(*entry, env[i]))
            i++;
        if (i == num_own && count + 1 < MAX_ENV)
            merged[count++] = *entry;
    }
    merged[count] = NULL;
}

tool_run tool_run_with(const char *const *args, const char *const *env) {
    const char *argv[MAX_ARGS] = {PAGEDCL_TOOL};
    for (size_t i = 0; args[i]; i++) {
        cr_assert_lt(i + 2, MAX_ARGS);
        argv[i + 1] = args[i];
    }
    const char *environment[MAX_ENV];
    merge_environment(env, environment);

    FILE *out = tmpfile(); /* files, not pipes: the program can never wait for the test */
    FILE *err = tmpfile();
    cr_assert(out && err);
    posix_spawn_file_actions_t actions;
    cr_assert_eq(posix_spawn_file_actions_init(&actions), 0);
    cr_assert_eq(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0), 0);
    cr_assert_eq(posix_spawn_file_actions_adddup2(&actions, fileno(out), 1), 0);
    cr_assert_eq(posix_spawn_file_actions_adddup2(&actions, fileno(err), 2), 0);
    pid_t pid;
    cr_assert_eq(posix_spawn(&pid, PAGEDCL_TOOL, &actions, NULL, (char *const *)argv, (char *const *)environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return (tool_run){WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out), read_all(err)};
}

void tool_run_free(tool_run *run) {
    free(run->out);
    free(run->err);
}

int tool_lines(const char *text) {
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}
