// Records the file operations of the daemon below one directory, in their order, and makes some of them fail. A library for
// LD_PRELOAD, built by the torture program; nothing else uses it.
//
// Environment: TORTURE_ROOT, the directory; TORTURE_LOG, the file for the records (empty: none); TORTURE_FAULTS, "SEED RATE
// PART": of a million operations so many fail, if PART is in the path; TORTURE_SWITCH: they fail only once this file exists;
// TORTURE_LIE: so many of a thousand syncs return 0 and do nothing.
//
// A record: operation (1 byte), result (4, signed), length of path, length of second path (2 each), offset (8), length of
// data (4), then these three. Numbers are little-endian.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, FAULT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1;
static uint64_t random_state, fault_rate, lie_rate;
static char fault_part[64] = "/";
static const char *fault_switch;

__attribute__((constructor)) static void start(void) {
    const char *of = getenv("TORTURE_ROOT"), *log = getenv("TORTURE_LOG");
    const char *faults = getenv("TORTURE_FAULTS"), *lie = getenv("TORTURE_LIE");
    if (!of || !realpath(of, root)) return;
    root_length = strlen(root);
    if (log && *log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    unsigned long long seed = 1, rate = 0;
    if (faults) sscanf(faults, "%llu %llu %63s", &seed, &rate, fault_part);
    fault_switch = getenv("TORTURE_SWITCH");
    random_state = seed * 0x9E3779B97F4A7C15ull | 1;
    fault_rate = rate;
    lie_rate = lie ? strtoull(lie, NULL, 10) : 0;
}

// One thread at a time changes the file system and records that. The journal is locked meanwhile: whoever kills the process takes
// the lock first, so that no operation is carried out and not recorded, and no entry is recorded in part.
static void hold(void) {
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) syscall(SYS_flock, log_fd, LOCK_EX);
}

static void release(void) {
    if (log_fd >= 0) syscall(SYS_flock, log_fd, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 16;
}

static int is_below(const char *path) {
    return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

// The path of a descriptor, if it is a file or directory below the root.
static int path_of(int fd, char *path) {
    char link[40];
    if (!root_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

// The path of a name; its parent must exist.
static int path_at(int directory, const char *name, char *path) {
    char joined[PATH_MAX], parent[PATH_MAX];
    if (!root_length || !name) return 0;
    if (name[0] == '/') snprintf(joined, sizeof joined, "%s", name);
    else if (directory == AT_FDCWD) {
        if (!getcwd(parent, sizeof parent)) return 0;
        if (snprintf(joined, sizeof joined, "%s/%s", parent, name) >= (int)sizeof joined) return 0;
    } else {
        if (!path_of(directory, parent)) return 0;
        if (snprintf(joined, sizeof joined, "%s/%s", parent, name) >= (int)sizeof joined) return 0;
    }
    char *slash = strrchr(joined, '/');
    while (slash && slash != joined && !slash[1]) { *slash = 0; slash = strrchr(joined, '/'); }
    if (!slash) return 0;
    *slash = 0;
    if (!realpath(*joined ? joined : "/", parent)) return 0;
    if (snprintf(path, PATH_MAX, "%s/%s", parent, slash + 1) >= PATH_MAX) return 0;
    return is_below(path);
}

static void record(uint8_t operation, int32_t result, const char *path, const char *other, uint64_t offset,
                   const void *data, uint32_t length) {
    if (log_fd < 0) return;
    uint16_t lengths[2] = { strlen(path), other ? strlen(other) : 0 };
    struct iovec parts[] = { { &operation, 1 }, { &result, 4 }, { lengths, 4 }, { &offset, 8 }, { &length, 4 },
        { (void *)path, lengths[0] }, { (void *)other, lengths[1] }, { (void *)data, length } };
    if (syscall(SYS_writev, log_fd, parts, 8) < 0) abort();
}

// Whether an operation on `path` is to be disturbed.
static int is_disturbed(const char *path) {
    if (!fault_rate || !strstr(path, fault_part) || next_random() % 1000000 >= fault_rate) return 0;
    if (fault_switch && syscall(SYS_faccessat, AT_FDCWD, fault_switch, F_OK)) return 0;
    fault_switch = NULL;
    return 1;
}

// Whether an operation on `path` is to fail; then errno is set.
static int fails(const char *path, int error) {
    if (!is_disturbed(path)) return 0;
    record(FAULT, error, path, NULL, 0, NULL, 0);
    errno = error;
    return 1;
}

static int write_error(void) { return next_random() % 2 ? EIO : ENOSPC; }

#define BEGIN char path[PATH_MAX]
#define END(result) do { int error = errno; release(); errno = error; return result; } while (0)

static ssize_t written_at(int fd, const void *data, size_t length, off64_t offset, const char *path) {
    if (fails(path, write_error())) return -1;
    if (length > 1 && is_disturbed(path)) {
        record(FAULT, 0, path, NULL, 0, NULL, 0);
        length = 1 + next_random() % (length - 1);
    }
    ssize_t result = offset >= 0 ? syscall(SYS_pwrite64, fd, data, length, offset) : syscall(SYS_write, fd, data, length);
    int error = errno;
    if (result > 0) {
        uint64_t at = offset >= 0 ? (uint64_t)offset : (uint64_t)(lseek64(fd, 0, SEEK_CUR) - result);
        record(WRITE, 0, path, NULL, at, data, result);
    }
    errno = error;
    return result;
}

ssize_t write(int fd, const void *data, size_t length) {
    BEGIN;
    if (!path_of(fd, path)) return syscall(SYS_write, fd, data, length);
    hold();
    ssize_t result = written_at(fd, data, length, -1, path);
    END(result);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    BEGIN;
    if (!path_of(fd, path)) return syscall(SYS_pwrite64, fd, data, length, offset);
    hold();
    ssize_t result = written_at(fd, data, length, offset, path);
    END(result);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    BEGIN;
    if (!path_of(fd, path)) return syscall(SYS_writev, fd, parts, count);
    size_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    char *data = malloc(length + 1);
    for (size_t at = 0, i = 0; i < (size_t)count; at += parts[i++].iov_len) memcpy(data + at, parts[i].iov_base, parts[i].iov_len);
    hold();
    ssize_t result = written_at(fd, data, length, -1, path);
    free(data);
    END(result);
}

static int synced(int fd, int call) {
    BEGIN;
    if (!path_of(fd, path)) return syscall(call, fd);
    hold();
    if (lie_rate && next_random() % 1000 < lie_rate) END(0);
    int failed = fails(path, EIO);
    if (failed) record(SYNC_END, -1, path, NULL, 0, NULL, 0);
    else record(SYNC_BEGIN, 0, path, NULL, 0, NULL, 0);
    int error = errno;
    release();
    errno = error;
    if (failed) return -1;
    int result = syscall(call, fd);
    error = errno;
    hold();
    record(SYNC_END, result, path, NULL, 0, NULL, 0);
    errno = error;
    END(result);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int opened(int directory, const char *name, int flags, mode_t mode) {
    BEGIN;
    if (!(flags & (O_CREAT | O_TRUNC)) || !path_at(directory, name, path))
        return syscall(SYS_openat, directory, name, flags, mode);
    hold();
    struct stat64 before;
    int existed = !fstatat64(directory, name, &before, 0);
    if (!existed && fails(path, next_random() % 2 ? ENOSPC : EMFILE)) END(-1);
    int result = syscall(SYS_openat, directory, name, flags, mode);
    int error = errno;
    if (result >= 0 && !existed) record(CREATE, 0, path, NULL, 0, NULL, 0);
    else if (result >= 0 && flags & O_TRUNC) record(TRUNCATE, 0, path, NULL, 0, NULL, 0);
    errno = error;
    END(result);
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags | O_LARGEFILE, mode); }
int openat(int directory, const char *name, int flags, ...) { MODE return opened(directory, name, flags, mode); }
int openat64(int directory, const char *name, int flags, ...) { MODE return opened(directory, name, flags | O_LARGEFILE, mode); }

int ftruncate64(int fd, off64_t length) {
    BEGIN;
    if (!path_of(fd, path)) return syscall(SYS_ftruncate, fd, length);
    hold();
    if (fails(path, EIO)) END(-1);
    int result = syscall(SYS_ftruncate, fd, length);
    int error = errno;
    if (!result) record(TRUNCATE, 0, path, NULL, length, NULL, 0);
    errno = error;
    END(result);
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    (void)fd, (void)mode, (void)offset, (void)length;
    errno = EOPNOTSUPP;
    return -1;
}
int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    char other[PATH_MAX];
    BEGIN;
    if (!path_at(from_directory, from, path) || !path_at(to_directory, to, other))
        return syscall(SYS_renameat, from_directory, from, to_directory, to);
    hold();
    if (fails(path, EIO)) END(-1);
    int result = syscall(SYS_renameat, from_directory, from, to_directory, to);
    int error = errno;
    if (!result) record(RENAME, 0, path, other, 0, NULL, 0);
    errno = error;
    END(result);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int directory, const char *name, int flags) {
    BEGIN;
    if (!path_at(directory, name, path)) return syscall(SYS_unlinkat, directory, name, flags);
    hold();
    int result = syscall(SYS_unlinkat, directory, name, flags);
    int error = errno;
    if (!result) record(UNLINK, 0, path, NULL, 0, NULL, 0);
    errno = error;
    END(result);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int directory, const char *name, mode_t mode) {
    BEGIN;
    if (!path_at(directory, name, path)) return syscall(SYS_mkdirat, directory, name, mode);
    hold();
    if (fails(path, ENOSPC)) END(-1);
    int result = syscall(SYS_mkdirat, directory, name, mode);
    int error = errno;
    if (!result) record(MKDIR, 0, path, NULL, 0, NULL, 0);
    errno = error;
    END(result);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
