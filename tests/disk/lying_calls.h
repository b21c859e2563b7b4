/* The libc calls themselves, by all the names that Python, RocksDB and the C++ library use. */

static int opened(int fd, const char *path, int created) {
  struct stat stat;
  if (fd < 0 || fd >= FDS || fstat(fd, &stat) != 0) return fd;
  files[fd].watched = S_ISDIR(stat.st_mode) ? 2 : 1;
  files[fd].inode = stat.st_ino;
  free(files[fd].path);
  files[fd].path = strdup(path);
  if (created) {
    const char *name = path + root_length;
    note(REC_CREATE, stat.st_ino, 0, name, strlen(name), NULL, 0, 0);
  }
  return fd;
}

static int open_watched(int directory, const char *path, int flags, mode_t mode) {
  const char *name = below(path);
  if (name == NULL) return (int)syscall(SYS_openat, directory, path, flags, mode);
  struct rule *rule = NULL;
  if (flags & O_CREAT) {
    rule = fault(OP_CREATE, path);
    if (is(rule, ACT_FAIL)) return (int)refused(rule->error);
  }
  if ((flags & O_TMPFILE) == O_TMPFILE) die("O_TMPFILE is not watched", path);
  pthread_mutex_lock(&turn);
  struct stat stat;
  int there = syscall(SYS_newfstatat, AT_FDCWD, path, &stat, 0) == 0;
  int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
  int error = errno;
  opened(fd, path, fd >= 0 && !there);
  if (fd >= 0 && there && flags & O_TRUNC && stat.st_size > 0)
    note(REC_TRUNCATE, stat.st_ino, 0, "", 0, NULL, 0, 0);
  pthread_mutex_unlock(&turn);
  errno = error;
  return (int)ended(rule, fd);
}

#define OPEN(name)                                    \
  int name(const char *path, int flags, ...) {        \
    va_list rest;                                     \
    va_start(rest, flags);                            \
    mode_t mode = va_arg(rest, mode_t);               \
    va_end(rest);                                     \
    return open_watched(AT_FDCWD, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                         \
  int name(int directory, const char *path, int flags, ...) { \
    va_list rest;                                            \
    va_start(rest, flags);                                   \
    mode_t mode = va_arg(rest, mode_t);                      \
    va_end(rest);                                            \
    return open_watched(directory, path, flags, mode);       \
  }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
  if (watched(fd)) files[fd].watched = 0;
  return (int)syscall(SYS_close, fd);
}

/* It closes the descriptor without a call of `close`. */
int fclose(FILE *stream) {
  REAL(fclose, int, FILE *);
  int fd = stream ? fileno(stream) : -1;
  if (watched(fd)) files[fd].watched = 0;
  return real_fclose(stream);
}

/* `watched` says which descriptors are the disk's; all others go to the kernel as they are. */
#define READ(name)                                          \
  ssize_t name(int fd, void *data, size_t length) {         \
    struct iovec iov = {data, length};                      \
    if (!watched(fd)) return syscall(SYS_read, fd, data, length); \
    return read_on(fd, &iov, 1);                            \
  }
READ(read)

#define PREAD(name)                                                          \
  ssize_t name(int fd, void *data, size_t length, off_t offset) {            \
    struct iovec iov = {data, length};                                       \
    if (!watched(fd)) return syscall(SYS_pread64, fd, data, length, offset); \
    return read_at(fd, &iov, 1, offset, 0);                                  \
  }
PREAD(pread)
PREAD(pread64)

ssize_t readv(int fd, const struct iovec *iov, int count) {
  if (!watched(fd)) return syscall(SYS_readv, fd, iov, count);
  return read_on(fd, iov, count);
}

#define PREADV(name, flags_there, ...)                                                   \
  ssize_t name(int fd, const struct iovec *iov, int count, off_t offset, ##__VA_ARGS__) { \
    if (!watched(fd)) return syscall(SYS_preadv2, fd, iov, count, offset, 0L, flags_there); \
    return read_at(fd, iov, count, offset, flags_there);                                 \
  }
PREADV(preadv, 0)
PREADV(preadv64, 0)
PREADV(preadv2, flags, int flags)
PREADV(preadv64v2, flags, int flags)

ssize_t write(int fd, const void *data, size_t length) {
  struct iovec iov = {(void *)data, length};
  if (!watched(fd)) return syscall(SYS_write, fd, data, length);
  return write_on(fd, &iov, 1);
}

#define PWRITE(name)                                                          \
  ssize_t name(int fd, const void *data, size_t length, off_t offset) {       \
    struct iovec iov = {(void *)data, length};                                \
    if (!watched(fd)) return syscall(SYS_pwrite64, fd, data, length, offset); \
    return write_at(fd, &iov, 1, offset, 0);                                  \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const struct iovec *iov, int count) {
  if (!watched(fd)) return syscall(SYS_writev, fd, iov, count);
  return write_on(fd, iov, count);
}

#define PWRITEV(name, flags_there, ...)                                                  \
  ssize_t name(int fd, const struct iovec *iov, int count, off_t offset, ##__VA_ARGS__) { \
    if (!watched(fd)) return syscall(SYS_pwritev2, fd, iov, count, offset, 0L, flags_there); \
    return write_at(fd, iov, count, offset, flags_there);                                \
  }
PWRITEV(pwritev, 0)
PWRITEV(pwritev64, 0)
PWRITEV(pwritev2, flags, int flags)
PWRITEV(pwritev64v2, flags, int flags)

int fsync(int fd) { return watched(fd) ? sync_one(fd) : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return watched(fd) ? sync_one(fd) : (int)syscall(SYS_fdatasync, fd); }

/* It promises nothing: no size, no flush of the disk's own cache. */
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
  return watched(fd) ? 0 : (int)syscall(SYS_sync_file_range, fd, offset, length, flags);
}

#define FTRUNCATE(name)                                           \
  int name(int fd, off_t size) {                                  \
    if (!watched(fd)) return (int)syscall(SYS_ftruncate, fd, size); \
    return resize(fd, OP_TRUNCATE, size);                         \
  }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

/* With FALLOC_FL_KEEP_SIZE nothing can be seen of it, unless the disk is full. */
#define FALLOCATE(name)                                                     \
  int name(int fd, int mode, off_t offset, off_t length) {                  \
    if (!watched(fd)) return (int)syscall(SYS_fallocate, fd, mode, offset, length); \
    if (mode & ~FALLOC_FL_KEEP_SIZE) die("fallocate is not watched", files[fd].path); \
    if (mode) return no_room(fd, (uint64_t)(offset + length)) ? (int)refused(ENOSPC) : 0; \
    return resize(fd, OP_ALLOCATE, offset + length);                        \
  }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                                        \
  int name(int fd, off_t offset, off_t length) {                                     \
    if (!watched(fd)) return syscall(SYS_fallocate, fd, 0L, offset, length) ? errno : 0; \
    return resize(fd, OP_ALLOCATE, offset + length) ? errno : 0;                     \
  }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

int rename(const char *from, const char *to) {
  const char *name = below(from), *target = below(to);
  if (name == NULL) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0L);
  if (target == NULL) die("renamed out of the data directory", from);
  struct rule *rule = fault(OP_RENAME, from);
  if (is(rule, ACT_FAIL)) return (int)refused(rule->error);
  char both[2 * PATH_MAX];
  size_t first = strlen(name), second = strlen(target);
  memcpy(both, name, first + 1);
  memcpy(both + first + 1, target, second);
  pthread_mutex_lock(&turn);
  note(REC_RENAME, 0, 0, both, first + 1 + second, NULL, 0, 0);
  long result = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0L);
  if (result != 0) die("the disk below failed", from);
  pthread_mutex_unlock(&turn);
  return (int)ended(rule, result);
}

int unlink(const char *path) {
  const char *name = below(path);
  if (name == NULL) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0L);
  struct rule *rule = fault(OP_UNLINK, path);
  if (is(rule, ACT_FAIL)) return (int)refused(rule->error);
  pthread_mutex_lock(&turn);
  struct stat stat;
  long result = syscall(SYS_newfstatat, AT_FDCWD, path, &stat, AT_SYMLINK_NOFOLLOW);
  if (result == 0) {
    note(REC_UNLINK, stat.st_ino, 0, name, strlen(name), NULL, 0, 0);
    result = syscall(SYS_unlinkat, AT_FDCWD, path, 0L);
  }
  pthread_mutex_unlock(&turn);
  return (int)ended(rule, result);
}

int mkdir(const char *path, mode_t mode) {
  const char *name = below(path);
  if (name == NULL) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
  pthread_mutex_lock(&turn);
  long result = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
  int error = errno;
  if (result == 0) note(REC_MKDIR, 0, 0, name, strlen(name), NULL, 0, 0);
  pthread_mutex_unlock(&turn);
  errno = error;
  return (int)result;
}

#define STATVFS(name, type)                                            \
  int name(const char *path, struct type *found) {                     \
    REAL(name, int, const char *, struct type *);                      \
    int result = real_##name(path, found);                             \
    if (result == 0 && below(path) != NULL && control->full)           \
      found->f_bavail = found->f_bfree = 0;                            \
    return result;                                                     \
  }
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)

/* What the log could not follow. */
#define MMAP(name)                                                                          \
  void *name(void *where, size_t length, int protection, int flags, int fd, off_t offset) { \
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && watched(fd))                   \
      die("a shared writable mapping", files[fd].path);                                     \
    return (void *)syscall(SYS_mmap, where, length, protection, flags, fd, offset);         \
  }
MMAP(mmap)
MMAP(mmap64)

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
  if (watched(out)) die("copy_file_range", files[out].path);
  return syscall(SYS_copy_file_range, in, from, out, to, length, flags);
}

#define TRUNCATE(name)                                                         \
  int name(const char *path, off_t size) {                                     \
    if (below(path) != NULL) die("truncate", path);                            \
    return (int)syscall(SYS_truncate, path, size);                             \
  }
TRUNCATE(truncate)
TRUNCATE(truncate64)

int link(const char *from, const char *to) {
  if (below(to) != NULL) die("link", to);
  return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0L);
}

int unlinkat(int directory, const char *path, int flags) {
  if (below(path) != NULL) die("unlinkat", path);
  return (int)syscall(SYS_unlinkat, directory, path, flags);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
  if (below(from) != NULL || below(to) != NULL) die("renameat", from);
  return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, 0);
}
