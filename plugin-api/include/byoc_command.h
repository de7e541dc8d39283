/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* byoc_command.h: for backends around a vendor's compiler that takes ONNX files and is a command. Optional.
 *
 * A command gets a time limit and no input; its last lines are kept for the error. Its children are killed with it. All
 * functions are reentrant. POSIX alone; define _GNU_SOURCE or _POSIX_C_SOURCE 200809L before the first include.
 */
#ifndef BYOC_COMMAND_H
#define BYOC_COMMAND_H

#include "byoc_json.h"
#include "byoc_plugin.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { BYOC_COMMAND_LINES = 4, BYOC_COMMAND_BYTES = 2048 };

/* -- Files --------------------------------------------------------------------------------------------------------- */

/* Directory for the files of one command, private to the user. */
typedef struct byoc_folder {
    char path[200];
} byoc_folder;

/* Creates a directory in $TMPDIR or /tmp. Returns 0 if it cannot. */
static inline int byoc_folder_new(byoc_folder *folder) {
    const char *parent = getenv("TMPDIR");
    int length = snprintf(folder->path, sizeof folder->path, "%s/byoc-XXXXXX", parent && *parent ? parent : "/tmp");
    return length > 0 && (size_t)length < sizeof folder->path && mkdtemp(folder->path) != NULL;
}

/* Path of a file in the directory. */
typedef struct byoc_path {
    char text[300];
} byoc_path;

static inline byoc_path byoc_file(const byoc_folder *folder, const char *name) {
    byoc_path path;
    snprintf(path.text, sizeof path.text, "%.199s/%.90s", folder->path, name);
    return path;
}

/* Removes the named files and the directory. */
static inline void byoc_folder_remove(const byoc_folder *folder, const char *const *names, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) unlink(byoc_file(folder, names[i]).text);
    rmdir(folder->path);
}

/* Writes pieces, one after another, into a new file that only the user can read. Returns 0 if it cannot. */
static inline int byoc_write_file(const char *path, const void *bytes, size_t size) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t done = 0;
    while (file >= 0 && done < size) {
        ssize_t count = write(file, (const char *)bytes + done, size - done);
        if (count <= 0) break;
        done += (size_t)count;
    }
    return file >= 0 && close(file) == 0 && done == size;
}

/* Reads a file after `before` bytes of a new buffer, which the caller frees. Returns NULL if it cannot; `size` is that of
 * the file. */
static inline char *byoc_read_file(const char *path, size_t before, size_t *size) {
    FILE *file = fopen(path, "rb");
    long length = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *bytes = length >= 0 && fseek(file, 0, SEEK_SET) == 0 ? (char *)malloc(before + (size_t)length + 1) : NULL;
    *size = bytes != NULL ? fread(bytes + before, 1, (size_t)length, file) : 0;
    if (file != NULL) fclose(file);
    if (bytes != NULL && *size != (size_t)length) {
        free(bytes);
        bytes = NULL;
    }
    return bytes;
}

/* -- ONNX ---------------------------------------------------------------------------------------------------------- */

/* Answer of the service that is being received. */
typedef struct byoc_onnx_answer {
    FILE *file;
    int failed;
    char error[1024];
    size_t error_size;
} byoc_onnx_answer;

static inline void byoc_onnx_receive(void *context, int32_t part, const void *bytes, size_t size) {
    byoc_onnx_answer *answer = (byoc_onnx_answer *)context;
    if (part == BYOC_ONNX_MODEL && fwrite(bytes, 1, size, answer->file) != size) answer->failed = 1;
    if (part == BYOC_ONNX_ERROR) {
        size_t room = sizeof answer->error - 1 - answer->error_size;
        size = size < room ? size : room;
        memcpy(answer->error + answer->error_size, bytes, size);
        answer->error_size += size;
    }
}

/* Writes a graph as an ONNX file. `options` as for byoc_onnx. Returns BYOC_OK, or BYOC_ERROR with the reason in `reason`. */
static inline int32_t byoc_write_onnx(const byoc_host *host, const char *graph, const byoc_constant *const *constants,
                                      size_t count, const char *options, const char *path, char *reason, size_t size) {
    const byoc_onnx *service = (const byoc_onnx *)host->get_service(host, BYOC_ONNX_SERVICE);
    byoc_tensor *tensors = (byoc_tensor *)calloc(count + 1, sizeof *tensors);
    byoc_onnx_answer answer;
    int32_t status = BYOC_ERROR;
    size_t i;
    memset(&answer, 0, sizeof answer);
    answer.file = fopen(path, "wbx");
    if (service == NULL || tensors == NULL || answer.file == NULL) {
        snprintf(reason, size, service == NULL ? "expected a host that writes ONNX, found one that only runs models" : "cannot write %s", path);
    } else {
        for (i = 0; i < count; i++) host->constant_tensor(constants[i], &tensors[i]);
        status = service->write(graph, tensors, count, options, &answer, byoc_onnx_receive);
        if (status != BYOC_OK) byoc_json_text(byoc_json_get(byoc_json_of(answer.error), "message"), reason, size);
    }
    free(tensors);
    if (answer.file != NULL && (fclose(answer.file) != 0 || answer.failed) && status == BYOC_OK) {
        snprintf(reason, size, "cannot write %s", path);
        status = BYOC_ERROR;
    }
    return status;
}

/* -- Commands ------------------------------------------------------------------------------------------------------ */

/* Results of byoc_command other than an exit status. */
enum { BYOC_NOT_STARTED = -1, BYOC_TIMED_OUT = -2, BYOC_STOPPED = -3 };

static inline double byoc_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Makes one line of the last lines of a text of at most BYOC_COMMAND_BYTES - 16 characters, without control characters. */
static inline void byoc_last_lines(char *text) {
    char line[BYOC_COMMAND_BYTES], *begin = text + strlen(text), *out = line;
    int lines = 0, is_gap = 1;
    while (begin > text && (lines < BYOC_COMMAND_LINES || begin[-1] != '\n')) {
        begin--;
        if (*begin != '\n' && (begin == text || begin[-1] == '\n')) lines++;
    }
    for (; *begin != 0; begin++) {
        unsigned char c = (unsigned char)*begin;
        if (c == '\n') {
            is_gap = 1;
        } else if (c >= 32 && c != 127) {
            if (is_gap && out > line) {
                *out++ = ';';
                *out++ = ' ';
            }
            is_gap = 0;
            *out++ = (char)c;
        }
    }
    *out = 0;
    memcpy(text, line, (size_t)(out - line) + 1);
}

/* Starts a process in `folder`, in a group of its own, with its messages in `output`. Returns 0 if it cannot. */
static inline pid_t byoc_start(const char *const *arguments, const char *folder, int output) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    if (posix_spawnp(&pid, arguments[0], &actions, &attributes, (char *const *)arguments, environ) != 0) pid = 0;
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return pid;
}

/* Runs a command (`arguments` ends with NULL) in `folder`, for at most `limit` seconds. Returns its exit status, 128 and the
 * signal that ended it, BYOC_NOT_STARTED, BYOC_TIMED_OUT, or BYOC_STOPPED if the host cancelled the work. `lines` gets its last
 * lines, BYOC_COMMAND_BYTES at most. */
static inline int byoc_command(const byoc_host *host, const char *const *arguments, const char *folder, double limit, char *lines) {
    const double end = byoc_seconds() + limit;
    const size_t room = BYOC_COMMAND_BYTES - 16;
    int ends[2], status = 0, result = BYOC_NOT_STARTED;
    size_t length = 0;
    pid_t pid, done = 0;
    lines[0] = 0;
    if (pipe(ends) != 0) return BYOC_NOT_STARTED;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    pid = byoc_start(arguments, folder, ends[1]);
    close(ends[1]);
    while (pid > 0 && done == 0) {
        struct pollfd ready;
        ssize_t count;
        ready.fd = ends[0];
        ready.events = POLLIN;
        done = waitpid(pid, &status, WNOHANG);
        if (done == 0 && poll(&ready, 1, 5) > 0 && (ready.revents & POLLIN) == 0) usleep(1000);
        while ((count = read(ends[0], lines + length, room - length)) > 0) {
            length += (size_t)count;
            if (length == room) { /* keeps the second half */
                length = room / 2;
                memmove(lines, lines + room - length, length);
            }
        }
        if (done == 0 && (byoc_seconds() > end || host->cancelled(host))) {
            result = byoc_seconds() > end ? BYOC_TIMED_OUT : BYOC_STOPPED;
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            done = -1;
        }
    }
    if (done > 0) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    close(ends[0]);
    lines[length] = 0;
    byoc_last_lines(lines);
    return result;
}

/* Says in `message` what is wrong with the result of a command that the variable names; `lines` are its last lines. Returns
 * the code of the problem, NULL if there is none. */
static inline const char *byoc_command_problem(int result, const char *variable, const char *lines, char *message, size_t size) {
    if (result == 0) return NULL;
    switch (result) {
    case BYOC_NOT_STARTED: snprintf(message, size, "the command cannot be started: set %s to its path", variable); break;
    case BYOC_TIMED_OUT: snprintf(message, size, "the command did not finish within its time limit and was killed: %.1900s", lines); break;
    case BYOC_STOPPED: snprintf(message, size, "cancelled by the host"); return BYOC_CANCELLED;
    default:
        snprintf(message, size, "the command ended with status %d: %.1900s", result, *lines ? lines : "no message");
        return BYOC_UNSUPPORTED_OP;
    }
    return BYOC_UNAVAILABLE;
}

/* Reads the option "time_limit" of a JSON object with "backend_options", in seconds. */
static inline double byoc_time_limit(const char *options, double otherwise) {
    char text[32];
    byoc_json_text(byoc_json_get(byoc_json_get(byoc_json_of(options), "backend_options"), "time_limit"), text, sizeof text);
    return atof(text) > 0 ? atof(text) : otherwise;
}

/* Appends the types of a list as text: "float32 1 3; ". `graph` is none if the list has types, else the graph that has the nodes
 * of the inputs or outputs listed. */
static inline void byoc_put_types(FILE *text, byoc_json list, byoc_json graph) {
    byoc_json item = byoc_json_first(list), dim;
    for (; byoc_json_there(item); item = byoc_json_next(item)) {
        byoc_json type = item, typed = byoc_json_get(item, "type");
        char dtype[16];
        if (byoc_json_there(typed)) {
            type = typed;
        } else if (byoc_json_there(graph)) {
            byoc_json node = byoc_json_at(byoc_json_get(graph, "nodes"), (size_t)byoc_json_int(byoc_json_at(item, 0), -1));
            type = byoc_json_at(byoc_json_get(node, "outputs"), (size_t)byoc_json_int(byoc_json_at(item, 1), -1));
        }
        byoc_json_text(byoc_json_get(type, "dtype"), dtype, sizeof dtype);
        fputs(dtype, text);
        for (dim = byoc_json_first(byoc_json_get(type, "dims")); byoc_json_there(dim); dim = byoc_json_next(dim)) {
            fprintf(text, " %ld", (long)byoc_json_int(dim, -1));
        }
        fputs("; ", text);
    }
}

/* Writes the types of inputs and outputs as one line, with its end, to be stored in a blob: those of a graph in `compile`, those
 * of the tensors that the region will be run on in `load`, from its options. The caller frees the text; NULL without memory. */
static inline char *byoc_types(const char *graph, const char *load_options) {
    byoc_json region = byoc_json_get(byoc_json_of(load_options ? load_options : "{}"), "region");
    byoc_json nodes = graph ? byoc_json_of(graph) : byoc_json_none(), types = graph ? nodes : region;
    char *line = NULL;
    size_t size;
    FILE *text = open_memstream(&line, &size);
    if (text == NULL) return NULL;
    byoc_put_types(text, byoc_json_get(types, "inputs"), nodes);
    fputs("-> ", text);
    byoc_put_types(text, byoc_json_get(types, "outputs"), nodes);
    fputs("\n", text);
    if (fclose(text) != 0) {
        free(line);
        return NULL;
    }
    return line;
}

/* Returns the size of a dense tensor in bytes. */
static inline size_t byoc_tensor_size(const byoc_tensor *tensor) {
    size_t size = (tensor->dtype.bits + 7u) / 8u;
    int32_t i;
    for (i = 0; i < tensor->ndim; i++) size *= (size_t)tensor->shape[i];
    return size;
}

/* Implements `prepare` for a region whose dimensions are all known: the outputs are those of the options of `load`. */
static inline int32_t byoc_prepare_static(byoc_call *call, const char *load_options) {
    byoc_json type = byoc_json_first(byoc_json_get(byoc_json_get(byoc_json_of(load_options), "region"), "outputs"));
    for (; byoc_json_there(type); type = byoc_json_next(type)) {
        int64_t dims[32];
        size_t rank = byoc_json_ints(byoc_json_get(type, "dims"), dims, 32, -1);
        if (rank > 32) {
            call->host->fail_with(call, BYOC_UNSUPPORTED_SHAPE, "expected an output of at most 32 dimensions", NULL);
            return BYOC_ERROR;
        }
        call->host->output(call, dims, rank, 1);
    }
    return BYOC_OK;
}

/* Runs a binary with a command that reads and writes files: `program binary 0.in 1.in -o 0.out`, in a directory of this run.
 * `variable` is named in the error. Returns BYOC_OK, or BYOC_ERROR after a call of `fail_with`. */
static inline int32_t byoc_run_files(byoc_call *call, const byoc_run *run, const char *program, const char *variable, const char *binary,
                                     double limit) {
    enum { MAX_FILES = 64 };
    const char *arguments[MAX_FILES + 4], *names[MAX_FILES], *code = BYOC_RESOURCE_LIMIT;
    char text[MAX_FILES][16], lines[BYOC_COMMAND_BYTES], message[2 * BYOC_COMMAND_BYTES] = "cannot write the files of a run";
    const size_t count = run->input_count + run->output_count;
    size_t i, size, argument = 0, written = 0;
    byoc_folder folder;
    if (count > MAX_FILES || !byoc_folder_new(&folder)) {
        call->host->fail_with(call, code, "expected at most 64 inputs and outputs, and a directory for their files", NULL);
        return BYOC_ERROR;
    }
    arguments[argument++] = program;
    arguments[argument++] = binary;
    for (i = 0; i < count; i++) {
        const int is_input = i < run->input_count;
        const byoc_tensor *tensor = is_input ? &run->inputs[i] : NULL;
        if (i == run->input_count) arguments[argument++] = "-o";
        snprintf(text[i], sizeof text[i], "%u.%s", (unsigned)(is_input ? i : i - run->input_count), is_input ? "in" : "out");
        names[i] = arguments[argument++] = text[i];
        if (is_input) {
            const char *data = (const char *)tensor->data + tensor->byte_offset;
            written += (size_t)byoc_write_file(byoc_file(&folder, text[i]).text, data, byoc_tensor_size(tensor));
        }
    }
    arguments[argument] = NULL;
    if (written == run->input_count) {
        int result = byoc_command(call->host, arguments, folder.path, limit, lines);
        code = byoc_command_problem(result, variable, lines, message, sizeof message);
    }
    for (i = run->input_count; code == NULL && i < count; i++) {
        const byoc_tensor *output = &run->outputs[i - run->input_count];
        char *bytes = byoc_read_file(byoc_file(&folder, names[i]).text, 0, &size);
        if (bytes != NULL && size == byoc_tensor_size(output)) {
            memcpy((char *)output->data + output->byte_offset, bytes, size);
        } else {
            snprintf(message, sizeof message, "%s: expected %zu bytes, found %zu: %.1900s", names[i], byoc_tensor_size(output), size, lines);
            code = BYOC_UNSUPPORTED_OP;
        }
        free(bytes);
    }
    byoc_folder_remove(&folder, names, count);
    if (code != NULL) call->host->fail_with(call, code, message, NULL);
    return code != NULL ? BYOC_ERROR : BYOC_OK;
}

#endif
