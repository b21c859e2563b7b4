/* What the library, in the bookie's process, and the harness (control.py) share.
 *
 * `control` is a file that both map: the harness arms faults, the library counts what it did.
 * `log` is a file that the library appends to: every change of the data directory, before it is
 * carried out, and every sync, after it succeeded. power_cut.py reads it.
 *
 * control.py and journal.py mirror these structs; all fields are naturally aligned.
 */
#ifndef LYING_DISK_H
#define LYING_DISK_H

#include <stdint.h>

enum { RULES = 32, BAD_RANGES = 32, NAME_BYTES = 64, ACTIONS = 16 };

/* Operations, as bits: a rule names those that it is for. */
enum operation {
  OP_CREATE = 1,
  OP_READ = 2,
  OP_WRITE = 4,         /* without a sync */
  OP_WRITE_SYNCED = 8,  /* with RWF_DSYNC */
  OP_SYNC = 16,         /* fsync, fdatasync, sync_file_range of a file */
  OP_ALLOCATE = 32,
  OP_TRUNCATE = 64,
  OP_RENAME = 128,
  OP_UNLINK = 256,
  OP_SYNC_DIRECTORY = 512,
};

enum action {
  ACT_NONE,
  ACT_FAIL,         /* `error` is errno. With `argument`, a write is carried out all the same */
  ACT_SHORT,        /* half of a read or write */
  ACT_FLIP,         /* of a read: one bit, `argument` chooses it */
  ACT_STALE,        /* of a read: zeros for the 512 bytes that `argument` chooses, as never written */
  ACT_MISDIRECT,    /* of a read: the bytes 4096 further on */
  ACT_HANG,         /* `argument` milliseconds; 0: until the rule is disarmed */
  ACT_LOSE,         /* of a write or sync: success, and nothing was done */
  ACT_KILL_BEFORE,  /* SIGKILL to this process instead of the operation */
  ACT_KILL_AFTER,   /* SIGKILL when the operation is carried out, before its caller knows */
};

/* A fault: for operations `operations` on paths that contain `name`, after `skip` of them, for
 * `times` of them (-1: all). */
struct rule {
  uint32_t armed;
  uint32_t operations;
  uint32_t action;
  int32_t error;
  int64_t skip;
  int64_t times;
  uint64_t argument;
  uint64_t hits;
  char name[NAME_BYTES];
};

/* A latent sector error: reads of it end with EIO until it is written again. */
struct bad_range {
  uint64_t inode;
  uint64_t offset;
  uint64_t length; /* 0: not used */
};

struct control {
  uint32_t full; /* no file may grow: ENOSPC, and statvfs says so */
  uint32_t hanging;
  uint64_t operations;
  uint64_t hits[ACTIONS];
  uint64_t bad_reads;
  uint64_t full_refusals;
  struct rule rules[RULES];
  struct bad_range bad[BAD_RANGES];
};

enum record_kind {
  REC_CREATE = 1,
  REC_WRITE,       /* data follows */
  REC_DURABLE,     /* the write before, number `offset`, was synced */
  REC_TRUNCATE,    /* to `offset` */
  REC_ALLOCATE,    /* up to `offset` */
  REC_SYNC,        /* what is before number `offset` */
  REC_SYNC_FAILED, /* what is before number `offset` may be gone, whatever comes later */
  REC_RENAME,      /* the name, and after a zero byte the new one */
  REC_UNLINK,
  REC_MKDIR,
  REC_SYNC_DIRECTORY,
  REC_LOST,        /* a write whose caller was told of success; data follows */
};

struct record {
  uint32_t magic; /* LOG_MAGIC */
  uint32_t kind;
  uint64_t number;
  uint64_t inode;
  uint64_t offset;
  uint32_t name_bytes;
  uint32_t data_bytes;
};

#define LOG_MAGIC 0x4b534944u

#endif
