/* A shim that simulates disk faults, and records every call that changes files.

   Preloaded into a process, the shim is called between the program (Python, and the SQLite inside apsw) and the C library for
   every call that changes files. Calls on files below one folder are *points*, counted from 1. At the point that it is armed for,
   it kills the process (before the call, after it, or half-way through a write) or makes calls fail (EIO or ENOSPC, once or for
   ever). It can also record every call that succeeded, with its data, in the order in which they took effect: states after a power
   loss are computed from that record later. Writes to mapped memory (the -shm file) are not seen: a crash loses them, as it should.

   The shim owns no file, and changes no result except at the armed point. Until it is armed, every call passes through. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets are passed to the kernel in one word");

/* shim.py relies on the order of these modes and kinds. */
enum mode { COUNT, KILL_BEFORE, KILL_AFTER, TEAR, EIO_ONCE, EIO_EVER, ENOSPC_ONCE, ENOSPC_EVER };
enum kind { MARK, CREATE, WRITE, SYNC, TRUNCATE, UNLINK, RENAME, MKDIR, RMDIR, LINK };

struct record {
    uint32_t kind, path_bytes, other_bytes, point;
    int64_t offset, data_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_bytes;
static char randomness[PATH_MAX];
static long count, armed_at;
static enum mode mode;
static int record_to = -1;
static int is_played, is_dead;

/* --- called from Python ----------------------------------------------------------------------------- */

void holdfast_shim_arm(const char *watched, long point, int how, int record_fd, int played) {
    snprintf(folder, sizeof folder, "%s", watched);
    folder_bytes = strlen(folder);
    count = 0;
    armed_at = point;
    mode = how;
    record_to = record_fd;
    is_played = played;
    is_dead = 0;
}

/* SQLite reads its random salts from this file: two processes with equal randomness write equal bytes. */
void holdfast_shim_randomness(const char *file) { snprintf(randomness, sizeof randomness, "%s", file); }

long holdfast_shim_count(void) { return count; }

/* Whether a simulated kill has happened: reports of the process after that must be dropped. */
int holdfast_shim_is_dead(void) { return is_dead; }

/* --- what happened ---------------------------------------------------------------------------------- */

static void write_all(const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        long done = syscall(SYS_write, record_to, at, bytes);
        if (done <= 0) return;
        at += done;
        bytes -= (size_t)done;
    }
}

static void note(enum kind kind, const char *path, const char *other, int64_t offset, const void *data, int64_t bytes) {
    if (record_to < 0) return;
    struct record head = {kind, (uint32_t)strlen(path), (uint32_t)strlen(other), (uint32_t)count, offset, bytes};
    write_all(&head, sizeof head);
    write_all(path, head.path_bytes);
    write_all(other, head.other_bytes);
    if (data != NULL) write_all(data, (size_t)bytes);
}

void holdfast_shim_mark(const char *text) {
    pthread_mutex_lock(&lock);
    note(MARK, "", "", 0, text, (int64_t)strlen(text));
    pthread_mutex_unlock(&lock);
}

/* --- which calls count ------------------------------------------------------------------------------ */

static int is_watched(const char *path) {
    return folder_bytes > 0 && strncmp(path, folder, folder_bytes) == 0 &&
           (path[folder_bytes] == '/' || path[folder_bytes] == '\0');
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long bytes = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (bytes < 0) return 0;
    path[bytes] = '\0';
    return is_watched(path);
}

static int path_at(int at, const char *name, char *path) {
    char from[PATH_MAX] = "";
    if (folder_bytes == 0 || name == NULL) return 0;
    if (name[0] != '/') {
        if (at == AT_FDCWD ? getcwd(from, sizeof from) == NULL : 0) return 0;
        if (at != AT_FDCWD) path_of(at, from);
        if (snprintf(path, PATH_MAX, "%s/%s", from, name) >= PATH_MAX) return 0;
    } else if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX) {
        return 0;
    }
    return is_watched(path);
}

/* Kill the process; a simulated kill leaves it running, but none of its calls changes the disk any more. */
static void die(void) {
    if (is_played) {
        is_dead = 1;
        errno = EIO;
        return;
    }
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Reach a point, and decide what to do with this call. The lock is held from here to `leave`. */
enum verdict { GO, GO_AND_DIE, HALF_AND_DIE, FAIL };

static enum verdict enter(void) {
    pthread_mutex_lock(&lock);
    if (is_dead) {
        errno = EIO;
        return FAIL;
    }
    count++;
    int here = armed_at > 0 && count == armed_at, since = armed_at > 0 && count >= armed_at;
    switch (mode) {
    case COUNT: return GO;
    case KILL_BEFORE: if (here) { die(); return FAIL; } return GO;
    case KILL_AFTER: return here ? GO_AND_DIE : GO;
    case TEAR: return here ? HALF_AND_DIE : GO;
    case EIO_ONCE: if (here) { errno = EIO; return FAIL; } return GO;
    case EIO_EVER: if (since) { errno = EIO; return FAIL; } return GO;
    case ENOSPC_ONCE: if (here) { errno = ENOSPC; return FAIL; } return GO;
    case ENOSPC_EVER: if (since) { errno = ENOSPC; return FAIL; } return GO;
    }
    return GO;
}

static long leave(enum verdict verdict, long result) {
    int error = errno;
    if (verdict == GO_AND_DIE || verdict == HALF_AND_DIE) die();
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

/* A call that happens completely or not at all: in mode TEAR the process dies before it. */
#define WHOLE(kind, path, other, offset, bytes, call)                     \
    do {                                                                  \
        enum verdict verdict = enter();                                   \
        if (verdict == FAIL) return (int)leave(verdict, -1);              \
        if (verdict == HALF_AND_DIE) { die(); return (int)leave(FAIL, -1); } \
        long result = (call);                                             \
        if (result >= 0) note(kind, path, other, offset, NULL, bytes);    \
        return (int)leave(verdict, result);                               \
    } while (0)

/* --- writes ----------------------------------------------------------------------------------------- */

static int64_t end_of(int fd) {
    struct stat found;
    if ((fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &found) == 0) return found.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

/* offset < 0: write at the current position of the file. */
static ssize_t write_at(int fd, const void *data, size_t bytes, int64_t offset) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(fd, path))
        return offset < 0 ? syscall(SYS_write, fd, data, bytes) : syscall(SYS_pwrite64, fd, data, bytes, offset);
    enum verdict verdict = enter();
    if (verdict == FAIL) return leave(verdict, -1);
    if (verdict == HALF_AND_DIE) bytes = (bytes + 1) / 2;
    int64_t place = offset < 0 ? end_of(fd) : offset;
    long done = offset < 0 ? syscall(SYS_write, fd, data, bytes) : syscall(SYS_pwrite64, fd, data, bytes, offset);
    if (done > 0) note(WRITE, path, "", place, data, done);
    return leave(verdict, done);
}

static ssize_t write_parts(int fd, const struct iovec *parts, int many, int64_t offset) {
    ssize_t total = 0;
    for (int index = 0; index < many; index++) {
        ssize_t done = write_at(fd, parts[index].iov_base, parts[index].iov_len, offset < 0 ? -1 : offset + total);
        if (done < 0) return total > 0 ? total : -1;
        total += done;
        if ((size_t)done < parts[index].iov_len) break;
    }
    return total;
}

/* A copy inside the kernel is replaced by reads and writes, so that it can be torn and recorded like any other write. */
static ssize_t copy(int to, int from, int64_t *to_at, int64_t *from_at, size_t bytes) {
    char data[65536];
    if (bytes > sizeof data) bytes = sizeof data;
    ssize_t had = from_at != NULL ? syscall(SYS_pread64, from, data, bytes, *from_at) : syscall(SYS_read, from, data, bytes);
    if (had <= 0) return had;
    ssize_t done = write_at(to, data, (size_t)had, to_at != NULL ? *to_at : -1);
    if (done > 0 && to_at != NULL) *to_at += done;
    if (done > 0 && from_at != NULL) *from_at += done;
    return done;
}

ssize_t write(int fd, const void *data, size_t bytes) { return write_at(fd, data, bytes, -1); }
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) { return write_at(fd, data, bytes, offset); }
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) { return write_at(fd, data, bytes, offset); }

ssize_t writev(int fd, const struct iovec *parts, int many) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(fd, path)) return syscall(SYS_writev, fd, parts, many);
    return write_parts(fd, parts, many, -1);
}

ssize_t pwritev(int fd, const struct iovec *parts, int many, off_t offset) { return write_parts(fd, parts, many, offset); }
ssize_t pwritev64(int fd, const struct iovec *parts, int many, off64_t offset) { return write_parts(fd, parts, many, offset); }

ssize_t pwritev2(int fd, const struct iovec *parts, int many, off_t offset, int flags) {
    (void)flags;
    return write_parts(fd, parts, many, offset);
}

ssize_t sendfile(int to, int from, off_t *from_at, size_t bytes) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(to, path)) return syscall(SYS_sendfile, to, from, from_at, bytes);
    return copy(to, from, NULL, (int64_t *)from_at, bytes);
}

ssize_t sendfile64(int to, int from, off64_t *from_at, size_t bytes) { return sendfile(to, from, (off_t *)from_at, bytes); }

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(to, path))
        return syscall(SYS_copy_file_range, from, from_at, to, to_at, bytes, flags);
    return copy(to, from, (int64_t *)to_at, (int64_t *)from_at, bytes);
}

/* --- syncs and sizes -------------------------------------------------------------------------------- */

static int sync_one(int fd, long call) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(fd, path)) return (int)syscall(call, fd);
    WHOLE(SYNC, path, "", 0, 0, syscall(call, fd));
}

int fsync(int fd) { return sync_one(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_one(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t bytes) {
    char path[PATH_MAX];
    if (folder_bytes == 0 || !path_of(fd, path)) return (int)syscall(SYS_ftruncate, fd, bytes);
    WHOLE(TRUNCATE, path, "", bytes, 0, syscall(SYS_ftruncate, fd, bytes));
}

int ftruncate64(int fd, off64_t bytes) { return ftruncate(fd, bytes); }

int truncate(const char *name, off_t bytes) {
    char path[PATH_MAX];
    if (!path_at(AT_FDCWD, name, path)) return (int)syscall(SYS_truncate, name, bytes);
    WHOLE(TRUNCATE, path, "", bytes, 0, syscall(SYS_truncate, name, bytes));
}

int truncate64(const char *name, off64_t bytes) { return truncate(name, bytes); }

/* --- names ------------------------------------------------------------------------------------------ */

static int open_at(int at, const char *name, int flags, unsigned permissions) {
    char path[PATH_MAX];
    struct stat found;
    if (randomness[0] != '\0' && strcmp(name, "/dev/urandom") == 0) name = randomness;
    int watched = path_at(at, name, path);
    int is_new = watched && (flags & O_CREAT) && fstatat(at, name, &found, 0) != 0;
    if (is_new) WHOLE(CREATE, path, "", 0, 0, syscall(SYS_openat, at, name, flags, permissions));
    if (watched && (flags & O_TRUNC)) WHOLE(TRUNCATE, path, "", 0, 0, syscall(SYS_openat, at, name, flags, permissions));
    return (int)syscall(SYS_openat, at, name, flags, permissions);
}

#define PERMISSIONS(flags, last)                                          \
    unsigned permissions = 0;                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                \
        va_list more;                                                     \
        va_start(more, last);                                             \
        permissions = va_arg(more, unsigned);                             \
        va_end(more);                                                     \
    }

int open(const char *name, int flags, ...) {
    PERMISSIONS(flags, flags)
    return open_at(AT_FDCWD, name, flags, permissions);
}

int open64(const char *name, int flags, ...) {
    PERMISSIONS(flags, flags)
    return open_at(AT_FDCWD, name, flags | O_LARGEFILE, permissions);
}

int openat(int at, const char *name, int flags, ...) {
    PERMISSIONS(flags, flags)
    return open_at(at, name, flags, permissions);
}

int openat64(int at, const char *name, int flags, ...) {
    PERMISSIONS(flags, flags)
    return open_at(at, name, flags | O_LARGEFILE, permissions);
}

int creat(const char *name, mode_t permissions) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, permissions); }

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_at(at, name, path) || fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return (int)syscall(SYS_unlinkat, at, name, flags);
    enum kind kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    WHOLE(kind, path, "", 0, 0, syscall(SYS_unlinkat, at, name, flags));
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char *name) {
    struct stat found;
    int is_folder = fstatat(AT_FDCWD, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(found.st_mode);
    return unlinkat(AT_FDCWD, name, is_folder ? AT_REMOVEDIR : 0);
}

int renameat2(int at, const char *name, int to, const char *new_name, unsigned flags) {
    char path[PATH_MAX], new_path[PATH_MAX];
    if (!path_at(at, name, path) || !path_at(to, new_name, new_path))
        return (int)syscall(SYS_renameat2, at, name, to, new_name, flags);
    WHOLE(RENAME, path, new_path, 0, 0, syscall(SYS_renameat2, at, name, to, new_name, flags));
}

int renameat(int at, const char *name, int to, const char *new_name) { return renameat2(at, name, to, new_name, 0); }
int rename(const char *name, const char *new_name) { return renameat2(AT_FDCWD, name, AT_FDCWD, new_name, 0); }

int mkdirat(int at, const char *name, mode_t permissions) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_at(at, name, path) || fstatat(at, name, &found, 0) == 0)
        return (int)syscall(SYS_mkdirat, at, name, permissions);
    WHOLE(MKDIR, path, "", 0, 0, syscall(SYS_mkdirat, at, name, permissions));
}

int mkdir(const char *name, mode_t permissions) { return mkdirat(AT_FDCWD, name, permissions); }

int linkat(int at, const char *name, int to, const char *new_name, int flags) {
    char path[PATH_MAX], new_path[PATH_MAX];
    if (!path_at(at, name, path) || !path_at(to, new_name, new_path))
        return (int)syscall(SYS_linkat, at, name, to, new_name, flags);
    WHOLE(LINK, path, new_path, 0, 0, syscall(SYS_linkat, at, name, to, new_name, flags));
}

int link(const char *name, const char *new_name) { return linkat(AT_FDCWD, name, AT_FDCWD, new_name, 0); }
