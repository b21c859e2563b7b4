/* A disk that lies, for one process: LD_PRELOAD of every libc call that touches the data directory.
 *
 *   LYING_DISK_ROOT     the data directory: paths below it are watched, all else passes through
 *   LYING_DISK_CONTROL  the file of `struct control`, which the harness made
 *   LYING_DISK_LOG      the file that changes are appended to
 *
 * Nothing is ever synced: the kernel keeps what a killed process wrote, and the harness then makes
 * of the log what a power cut might have left. Each change is one turn under one lock: it is
 * logged, then carried out. So at a kill the log may be one change ahead of the directory, never
 * behind. Calls that would go past the log (shared writable mappings, copy_file_range, links)
 * end the process with a message. RocksDB's own log is not watched, nor needs it be.
 */
#define _GNU_SOURCE
#include "lying_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 65536, BLOCK = 4096, SECTOR = 512, IOV_MAX_HERE = 1024 };

struct file {
  int watched; /* 1: a file, 2: a directory */
  uint64_t inode;
  char *path;
};

static struct file files[FDS];
static struct control *control;
static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_length;
static uint64_t number;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside; /* calls of this library's own pass through */

#define REAL(name, type, ...)                                    \
  static type (*real_##name)(__VA_ARGS__);                       \
  if (real_##name == NULL) real_##name = dlsym(RTLD_NEXT, #name)

static void die(const char *what, const char *path) {
  dprintf(2, "lying disk: %s: %s\n", what, path);
  _exit(97);
}

__attribute__((constructor)) static void begin(void) {
  const char *where = getenv("LYING_DISK_ROOT");
  if (where == NULL || control != NULL) return;
  snprintf(root, sizeof root, "%s/", where);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("LYING_DISK_CONTROL"), O_RDWR | O_CLOEXEC);
  void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE,
                                            MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) die("no control file", strerror(errno));
  log_fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("LYING_DISK_LOG"),
                        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log_fd < 0) die("no log", strerror(errno));
  control = mapped;
  root_length = strlen(root); /* from here on paths are watched */
}

/* --- what is watched, and the log ------------------------------------------------------------ */

/* The path below the root, NULL where it is not; the root itself is "". */
static const char *below(const char *path) {
  if (!root_length || path == NULL || inside) return NULL;
  const char *base = strrchr(path, '/');
  if (base != NULL && strncmp(base, "/LOG", 4) == 0) return NULL; /* RocksDB's own log */
  if (strncmp(path, root, root_length) == 0) return path + root_length;
  return strncmp(path, root, root_length - 1) == 0 && path[root_length - 1] == 0 ? "" : NULL;
}

static struct file *watched(int fd) {
  if (fd < 0 || fd >= FDS || inside) return NULL;
  return files[fd].watched ? &files[fd] : NULL;
}

/* Under the lock. Returns the record's number. */
static uint64_t note(enum record_kind kind, uint64_t inode, uint64_t offset, const char *name,
                     size_t name_bytes, const struct iovec *data, int count, size_t data_bytes) {
  struct record record = {LOG_MAGIC, kind, ++number, inode, offset,
                          (uint32_t)name_bytes, (uint32_t)data_bytes};
  struct iovec all[IOV_MAX_HERE + 2];
  if (count > IOV_MAX_HERE) die("too many buffers", "writev");
  all[0] = (struct iovec){&record, sizeof record};
  all[1] = (struct iovec){(void *)name, name_bytes};
  int used = 2;
  for (size_t left = data_bytes; left > 0; used++) { /* a short write logs what it wrote */
    all[used] = data[used - 2];
    if (all[used].iov_len > left) all[used].iov_len = left;
    left -= all[used].iov_len;
  }
  size_t wanted = sizeof record + name_bytes + data_bytes;
  int limit = used;
  struct iovec *at = all;
  while (wanted > 0) { /* the kernel takes 1024 buffers at a time */
    int some = limit > IOV_MAX_HERE ? IOV_MAX_HERE : limit;
    ssize_t put = syscall(SYS_writev, log_fd, at, some);
    if (put < 0) die("the log cannot be written", strerror(errno));
    wanted -= (size_t)put;
    while (limit > 0 && (size_t)put >= at->iov_len) {
      put -= (ssize_t)at->iov_len;
      at++, limit--;
    }
    if (put > 0) at->iov_base = (char *)at->iov_base + put, at->iov_len -= (size_t)put;
  }
  return record.number;
}

/* --- faults ---------------------------------------------------------------------------------- */

static void sleep_ms(uint64_t ms) {
  struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  nanosleep(&time, NULL);
}

static void hang(struct rule *rule) {
  __atomic_add_fetch(&control->hanging, 1, __ATOMIC_SEQ_CST);
  if (rule->argument) sleep_ms(rule->argument);
  else
    while (__atomic_load_n(&rule->armed, __ATOMIC_SEQ_CST)) sleep_ms(10);
  __atomic_sub_fetch(&control->hanging, 1, __ATOMIC_SEQ_CST);
}

/* The fault for this operation, NULL if there is none. Never called under the lock. */
static struct rule *fault(enum operation operation, const char *path) {
  __atomic_add_fetch(&control->operations, 1, __ATOMIC_SEQ_CST);
  for (struct rule *rule = control->rules; rule < control->rules + RULES; rule++) {
    if (!__atomic_load_n(&rule->armed, __ATOMIC_SEQ_CST)) continue;
    if (!(rule->operations & operation) || strstr(path, rule->name) == NULL) continue;
    if (__atomic_fetch_sub(&rule->skip, 1, __ATOMIC_SEQ_CST) > 0) continue;
    if (rule->times >= 0 && __atomic_fetch_sub(&rule->times, 1, __ATOMIC_SEQ_CST) <= 0) {
      rule->times = 0;
      continue;
    }
    __atomic_add_fetch(&rule->hits, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&control->hits[rule->action], 1, __ATOMIC_SEQ_CST);
    if (rule->action == ACT_HANG) hang(rule);
    if (rule->action == ACT_KILL_BEFORE) kill(getpid(), SIGKILL), pause();
    return rule;
  }
  return NULL;
}

static int is(const struct rule *rule, enum action action) {
  return rule != NULL && rule->action == action;
}

static long refused(int error) {
  errno = error;
  return -1;
}

static long ended(const struct rule *rule, long result) {
  if (is(rule, ACT_KILL_AFTER)) kill(getpid(), SIGKILL), pause();
  return result;
}

/* Whether a change that makes the file `end` bytes long has no room. */
static int no_room(int fd, uint64_t end) {
  struct stat stat;
  if (!control->full || fstat(fd, &stat) != 0 || end <= (uint64_t)stat.st_size) return 0;
  __atomic_add_fetch(&control->full_refusals, 1, __ATOMIC_SEQ_CST);
  return 1;
}

static size_t total(const struct iovec *iov, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) sum += iov[i].iov_len;
  return sum;
}

/* --- reads ----------------------------------------------------------------------------------- */

/* How much of a read from `offset` comes before the first bad sector; `length` where none does. */
static size_t readable(const struct file *file, uint64_t offset, size_t length) {
  for (struct bad_range *bad = control->bad; bad < control->bad + BAD_RANGES; bad++) {
    if (!bad->length || bad->inode != file->inode) continue;
    uint64_t end = bad->offset + bad->length;
    if (offset >= end || offset + length <= bad->offset) continue;
    length = offset >= bad->offset ? 0 : bad->offset - offset;
    __atomic_add_fetch(&control->bad_reads, 1, __ATOMIC_SEQ_CST);
  }
  return length;
}

static void heal(const struct file *file, uint64_t offset, size_t length) {
  for (struct bad_range *bad = control->bad; bad < control->bad + BAD_RANGES; bad++)
    if (bad->inode == file->inode && offset <= bad->offset &&
        offset + length >= bad->offset + bad->length)
      bad->length = 0;
}

static ssize_t read_at(int fd, const struct iovec *iov, int count, off_t offset, int flags) {
  struct file *file = &files[fd];
  size_t wanted = total(iov, count);
  struct rule *rule = fault(OP_READ, file->path);
  if (is(rule, ACT_FAIL)) return refused(rule->error);
  size_t good = readable(file, (uint64_t)offset, wanted);
  if (good == 0 && wanted > 0) return refused(EIO);
  if (is(rule, ACT_SHORT) && good > 1) good = good > BLOCK ? good / 2 / BLOCK * BLOCK : good / 2;
  off_t from = is(rule, ACT_MISDIRECT) ? offset + BLOCK : offset;
  ssize_t got = syscall(SYS_preadv2, fd, iov, (long)count, (long)from, 0L, (long)flags);
  if (got > (ssize_t)good) got = (ssize_t)good;
  if (got <= 0 || !(is(rule, ACT_FLIP) || is(rule, ACT_STALE))) return got;
  size_t at = rule->argument % (size_t)got;
  size_t first = is(rule, ACT_STALE) ? at / SECTOR * SECTOR : at;
  size_t last = is(rule, ACT_STALE) ? first + SECTOR : at + 1;
  for (int i = 0; i < count; i++) {
    for (size_t k = 0; k < iov[i].iov_len && k < last; k++)
      if (k >= first && k < (size_t)got)
        ((char *)iov[i].iov_base)[k] ^= is(rule, ACT_FLIP) ? 1 << rule->argument % 7
                                                           : ((char *)iov[i].iov_base)[k];
    first = first > iov[i].iov_len ? first - iov[i].iov_len : 0;
    last = last > iov[i].iov_len ? last - iov[i].iov_len : 0;
  }
  return got;
}

/* A read at the descriptor's own position. */
static ssize_t read_on(int fd, const struct iovec *iov, int count) {
  off_t at = lseek(fd, 0, SEEK_CUR);
  ssize_t got = read_at(fd, iov, count, at, 0);
  if (got > 0) lseek(fd, at + got, SEEK_SET);
  return got;
}

/* --- changes --------------------------------------------------------------------------------- */

static ssize_t write_at(int fd, const struct iovec *iov, int count, off_t offset, int flags) {
  struct file *file = &files[fd];
  size_t wanted = total(iov, count);
  int synced = (flags & RWF_DSYNC) != 0;
  struct rule *rule = fault(synced ? OP_WRITE_SYNCED : OP_WRITE, file->path);
  if (is(rule, ACT_FAIL) && !rule->argument) return refused(rule->error);
  size_t length = wanted;
  if (is(rule, ACT_SHORT) && wanted > 1)
    length = wanted > BLOCK ? wanted / 2 / BLOCK * BLOCK : wanted % SECTOR ? wanted / 2 : wanted;
  pthread_mutex_lock(&turn);
  if (no_room(fd, (uint64_t)offset + length)) {
    pthread_mutex_unlock(&turn);
    return refused(ENOSPC);
  }
  int lost = is(rule, ACT_LOSE);
  uint64_t noted = note(lost ? REC_LOST : REC_WRITE, file->inode, (uint64_t)offset, "", 0, iov,
                        count, length);
  ssize_t put = (ssize_t)length;
  if (!lost) {
    struct iovec some[IOV_MAX_HERE];
    size_t left = length;
    int used = 0;
    for (; used < count && left > 0; used++) {
      some[used] = iov[used];
      if (some[used].iov_len > left) some[used].iov_len = left;
      left -= some[used].iov_len;
    }
    put = syscall(SYS_pwritev2, fd, some, (long)used, (long)offset, 0L, (long)(flags & ~RWF_DSYNC));
    if (put != (ssize_t)length) die("the disk below failed", file->path);
    heal(file, (uint64_t)offset, length);
    if (synced && is(rule, ACT_FAIL))
      note(REC_SYNC_FAILED, file->inode, noted + 1, "", 0, NULL, 0, 0);
    else if (synced)
      note(REC_DURABLE, file->inode, noted, "", 0, NULL, 0, 0);
  }
  pthread_mutex_unlock(&turn);
  if (is(rule, ACT_FAIL)) return refused(rule->error);
  return ended(rule, put);
}

/* A write at the descriptor's own position, or at the file's end. */
static ssize_t write_on(int fd, const struct iovec *iov, int count) {
  int end = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
  off_t at = lseek(fd, 0, end ? SEEK_END : SEEK_CUR);
  ssize_t put = write_at(fd, iov, count, at, 0);
  if (put > 0) lseek(fd, at + put, SEEK_SET);
  return put;
}

static int sync_one(int fd) {
  struct file *file = &files[fd];
  int directory = file->watched == 2;
  pthread_mutex_lock(&turn);
  uint64_t before = number + 1;
  pthread_mutex_unlock(&turn);
  struct rule *rule = fault(directory ? OP_SYNC_DIRECTORY : OP_SYNC, file->path);
  if (!is(rule, ACT_LOSE)) {
    enum record_kind kind = directory ? REC_SYNC_DIRECTORY : REC_SYNC;
    if (is(rule, ACT_FAIL)) kind = REC_SYNC_FAILED;
    pthread_mutex_lock(&turn);
    const char *name = file->path + root_length - 1;
    note(kind, file->inode, before, *name ? name + 1 : "", *name ? strlen(name + 1) : 0, NULL, 0, 0);
    pthread_mutex_unlock(&turn);
  }
  return is(rule, ACT_FAIL) ? (int)refused(rule->error) : (int)ended(rule, 0);
}

/* A change of the file's size: to `size` exactly, or at least. */
static int resize(int fd, enum operation operation, off_t size) {
  struct file *file = &files[fd];
  struct rule *rule = fault(operation, file->path);
  if (is(rule, ACT_FAIL)) return (int)refused(rule->error);
  pthread_mutex_lock(&turn);
  if (no_room(fd, (uint64_t)size)) {
    pthread_mutex_unlock(&turn);
    return (int)refused(ENOSPC);
  }
  int allocate = operation == OP_ALLOCATE;
  struct stat stat;
  fstat(fd, &stat);
  long result = 0;
  if (!allocate || size > stat.st_size) {
    note(allocate ? REC_ALLOCATE : REC_TRUNCATE, file->inode, (uint64_t)size, "", 0, NULL, 0, 0);
    result = allocate ? syscall(SYS_fallocate, fd, 0L, (long)stat.st_size,
                                (long)(size - stat.st_size))
                      : syscall(SYS_ftruncate, fd, (long)size);
    if (result != 0) die("the disk below failed", file->path);
  }
  pthread_mutex_unlock(&turn);
  return (int)ended(rule, result);
}

#include "lying_calls.h"
