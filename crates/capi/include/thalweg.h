/*
 * Thalweg: volumes with transactions (Isotope's calls), and filesystems.
 *
 * A transaction belongs to the thread that began it, and to one volume. Reads and writes of a thread
 * without a transaction are transactions of their own: a read sees the last commit, a write always
 * commits and is durable when the call returns.
 *
 * Pairs of begin and end nest. Inner ones change nothing: an inner begin gives no new snapshot, an
 * inner end succeeds. An inner abort dooms the enclosing transaction: until every enclosing pair has
 * ended, all calls fail with -ECANCELED, but tw_end_tx returns 0 and tw_abort_tx succeeds. The same
 * holds when a transaction is aborted from outside: because it was idle for too long, or held too
 * much memory. A begin that fails opens no pair.
 *
 * Calls return 0 (tw_end_tx: 1 or 0), or a negative errno; tw_error() has the text:
 *
 *   -EINVAL     an argument is invalid, the volume has no such block, or the block belongs to a
 *               partition that is not raw
 *   -ESRCH      no transaction has begun here
 *   -ECANCELED  the transaction was aborted: end or abort it
 *   -EAGAIN     the transaction conflicts with another: try it again
 *   -E2BIG      the transaction exceeds the maximum of written blocks
 *   -EMFILE     the process exceeds the maximum of running transactions
 *   -ENOENT     no transaction was released under this handle; no such volume
 *   -ESTALE     the version is not kept, or was lost in a crash
 *   -ENOTCONN   the volume's server is gone; whether an unanswered commit took effect is unknown
 *   -EBADFD     a parent of this process has opened the volume: open it in this process
 *   -EBUSY      another process has the volume open, and does not serve it
 *   -ENOSPC     the volume is full
 *   -EBADMSG    a stored block does not match its checksum
 *   -EROFS      the volume refuses writes since a device failed, or since a replica has replaced it; it is a replica that
 *               no process runs
 *   -EIO        a device failed, or too few replicas have a change that is durable here
 *   -ENODATA    the volume has had no replica, and so has no position
 *
 * of reads and writes for sessions, and of old versions:
 *
 *   -ENODATA    the volume does not have the version yet, or no state at all: ask another node, or wait
 *   -EREMOTE    only the primary can give the guarantee: ask it
 *   -ETIME      the volume, a replica, may be older than the bound: ask another node
 *   -EREMCHG    the volume has gone another way than the session saw it: begin a new session
 *   -ESTALE     the version is not kept any more
 *   -EBUSY      another thread uses the session
 *
 * and of partitions, key-value stores among them:
 *
 *   -ENOENT        no partition has this name
 *   -EEXIST        a partition has this name
 *   -ENOSPC        the partition, or the volume, is full
 *   -ENAMETOOLONG  the key is too long
 *   -EFBIG         the value is too long
 *   -ERANGE        the value is longer than the buffer
 *
 * Calls on files (tw_fs_*, tw_file_*, tw_dir_*) do what the call of the system does that they name, on a filesystem
 * that need not be mounted, and fail with its errno; -ESHUTDOWN when the filesystem was closed. Paths begin at the
 * filesystem's root, with or without a slash, as do the targets of absolute symbolic links. A result that is a size or an
 * offset is an int64_t, negative for an error. After a null pointer tw_errno() has the errno.
 *
 * How far a file has come can be asked and waited for: tw_file_level(), tw_file_wait_for(). For a file on a mount the same is
 * an ioctl(2): _IOR(0xF7, 1, uint32_t) receives a TW_LEVEL; _IOW(0xF7, 2, uint32_t[2]) waits for one, for replicas at most so
 * many milliseconds and at most a second, and returns 1 or 0.
 *
 * Calls on a path act for a user, and are checked as on a mount: modes, access control lists, the sticky bit. Changes are
 * visible to all users of the filesystem when a call returns, and survive a crash after tw_file_fsync(), of the directory
 * too, or tw_fs_sync().
 *
 * A volume, a filesystem and a file may be used by all threads at once. A child of fork() cannot use what its parent has
 * open: each call on that fails with -EBADFD at once. It may close it, or exit: both change nothing of the parent's, nor its
 * transactions and locks. A child opens the volume or the filesystem for itself.
 */

#ifndef THALWEG_H
#define THALWEG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Bytes in a block.
 */
#define TW_BLOCK_SIZE 4096

/*
 As if transactions ran one after the other, in an order that agrees with real time.
 */
#define TW_STRICT 0

/*
 Reads see one snapshot; of two transactions that write the same bytes one commits. Permits write skew.
 */
#define TW_SNAPSHOT 1

/*
 Reads only: sees one snapshot, and always commits.
 */
#define TW_READ_ONLY 2

/*
 A symbolic link at the end of the path is not followed.
 */
#define TW_NOFOLLOW 256

/*
 Of tw_fs_link(): a symbolic link at the end of the old path is followed.
 */
#define TW_FOLLOW 1024

/*
 Of tw_fs_rename2(): the new name must not exist.
 */
#define TW_RENAME_NOREPLACE 1

/*
 Of tw_fs_rename2(): the two names are exchanged.
 */
#define TW_RENAME_EXCHANGE 2

/*
 In `nanos` of tw_fs_utimens(): the time of the call. The number of UTIME_NOW.
 */
#define TW_NOW ((1 << 30) - 1)

/*
 In `nanos` of tw_fs_utimens(): the time stays. The number of UTIME_OMIT.
 */
#define TW_OMIT ((1 << 30) - 2)

/*
 Some changes of the file may be lost in a crash.
 */
#define TW_LEVEL_MEMORY 0

/*
 All changes of the file are in the journal of a mount, on this machine's own drive, or at the server. Only mounts of a shared
 filesystem with a journal have this level; elsewhere to wait for it is to wait for TW_LEVEL_SERVER.
 */
#define TW_LEVEL_JOURNAL 1

/*
 All changes of the file are on the drives of the filesystem: of its server, or of this machine.
 */
#define TW_LEVEL_SERVER 2

/*
 All changes of the file are on the drives of the volume's replicas, too.
 */
#define TW_LEVEL_REPLICAS 3

/*
 Of tw_fs_setxattr(): the attribute must not exist.
 */
#define TW_XATTR_CREATE 1

/*
 Of tw_fs_setxattr(): the attribute must exist.
 */
#define TW_XATTR_REPLACE 2

/*
 Bytes that the text of any position takes, with the zero at its end.
 */
#define TW_POSITION_TEXT 95

/*
 Bytes that the text of any session takes, with the zero at its end.
 */
#define TW_SESSION_TEXT 137

/*
 Bytes that the text of any guarantee takes, with the zero at its end.
 */
#define TW_GUARANTEE_TEXT 144

/*
 A B-tree: keys have an order.
 */
#define TW_KV_BTREE 0

/*
 A hash table.
 */
#define TW_KV_HASH 1

/*
 Bytes that the text of any version takes, with the zero at its end.
 */
#define TW_VERSION_TEXT 42

/*
 An open directory. It must be closed before its filesystem is, and is for one thread at a time.
 */
typedef struct tw_dir tw_dir;

/*
 An open file or directory. It must be closed before its filesystem is.
 */
typedef struct tw_file tw_file;

/*
 An open filesystem, as one user sees it.
 */
typedef struct tw_fs tw_fs;

/*
 A key-value store in a partition of a volume. It must be closed before the volume is.
 */
typedef struct tw_kv tw_kv;

/*
 An iterator over a store. It must be closed before the store is.
 */
typedef struct tw_kv_iter tw_kv_iter;

/*
 A raw partition of a volume: blocks for a program that brings its own layout, numbered from 0. It must be
 closed before the volume is.
 */
typedef struct tw_raw tw_raw;

/*
 What a client has read and written, and what it needs of its next reads. It belongs to one thread at a time: calls of
 another one fail with -EBUSY while a call uses it. It is of no volume, and can be used with a replica too.
 */
typedef struct tw_session tw_session;

/*
 An open volume.
 */
typedef struct tw_volume tw_volume;

/*
 Names a released transaction until a takeover. It may be sent to another process.
 */
typedef struct tw_handle {
  /*
   Opaque.
   */
  uint8_t bytes[16];
} tw_handle;

/*
 How a filesystem is opened. All zeros are the defaults.
 */
typedef struct tw_fs_options {
  /*
   The name of the filesystem on its volume; null for the one that `thalweg mkfs` makes.
   */
  const char *name;
  /*
   The journal's device, if the journal is outside of a volume that is updated in place; or null.
   */
  const char *journal;
  /*
   For SERVER:/PATH, the first time: the token that `thalweg cluster client add` printed; or null.
   */
  const char *token;
  /*
   For SERVER:/PATH: the folder with the keys; null for this user's.
   */
  const char *keys;
  /*
   Not 0: changes are refused, and no byte of the volume changes.
   */
  int read_only;
} tw_fs_options;

/*
 A point in time.
 */
typedef struct tw_time {
  /*
   Seconds since 1970, negative before.
   */
  int64_t seconds;
  /*
   Nanoseconds after them.
   */
  uint32_t nanos;
} tw_time;

/*
 The attributes of an inode, as stat(2) shows them.
 */
typedef struct tw_stat {
  /*
   The number of the inode: never given to another one.
   */
  uint64_t ino;
  /*
   Type (S_IFMT) and permission bits.
   */
  uint32_t mode;
  /*
   Names that it has.
   */
  uint32_t links;
  /*
   The owner.
   */
  uint32_t uid;
  /*
   The group.
   */
  uint32_t gid;
  /*
   Of a device: its number.
   */
  uint32_t rdev;
  /*
   The best size of reads and writes, in bytes.
   */
  uint32_t block_size;
  /*
   Bytes.
   */
  uint64_t size;
  /*
   Storage in units of 512 bytes.
   */
  uint64_t blocks;
  /*
   The last read, as far as that is noted.
   */
  struct tw_time accessed;
  /*
   The last change of the content.
   */
  struct tw_time modified;
  /*
   The last change of content or attributes.
   */
  struct tw_time changed;
  /*
   When it was made.
   */
  struct tw_time created;
} tw_stat;

/*
 How full a filesystem is, as statvfs(3) shows it.
 */
typedef struct tw_statfs {
  /*
   Bytes in a block.
   */
  uint32_t block_size;
  /*
   Longest name in bytes.
   */
  uint32_t name_max;
  /*
   Blocks for files and metadata.
   */
  uint64_t blocks;
  /*
   Free blocks of these.
   */
  uint64_t blocks_free;
  /*
   The maximum of inodes.
   */
  uint64_t files;
  /*
   Inodes that can still be made.
   */
  uint64_t files_free;
  /*
   Not 0: changes are refused.
   */
  int read_only;
} tw_statfs;

/*
 A name in a directory.
 */
typedef struct tw_entry {
  /*
   The inode.
   */
  uint64_t ino;
  /*
   Its type: bits of S_IFMT.
   */
  uint32_t kind;
  /*
   The bytes of the name.
   */
  uint32_t name_len;
  /*
   The name; it is valid until the next call on the directory.
   */
  const char *name;
} tw_entry;

/*
 A lock of a range of bytes.
 */
typedef struct tw_lock {
  /*
   F_RDLCK, F_WRLCK or F_UNLCK.
   */
  int kind;
  /*
   The process that has it, as far as that is known.
   */
  uint32_t pid;
  /*
   The first byte.
   */
  int64_t start;
  /*
   How many bytes; 0 for all up to the end, wherever that is.
   */
  int64_t len;
} tw_lock;

/*
 The name of a state of a volume. Each opening of the volume for writing begins an epoch, in which versions are
 counted; so no other state ever has the same name.
 */
typedef struct tw_version {
  /*
   The epoch.
   */
  uint64_t epoch;
  /*
   The version.
   */
  uint64_t version;
} tw_version;

/*
 What a read for a session has got. Versions are those that tw_version has in `version`.
 */
typedef struct tw_got {
  /*
   The oldest version that has the content.
   */
  uint64_t oldest;
  /*
   The newest one that is known to have it. The versions in between have it too.
   */
  uint64_t newest;
  /*
   How long ago it was replaced, in nanoseconds: at most. 0 when it is the newest, -1 when that is not known.
   */
  int64_t age_ns;
  /*
   The guarantee that it meets, as in "read-my-writes,bounded=5s".
   */
  char guarantee[TW_GUARANTEE_TEXT];
} tw_got;

/*
 Versions from `oldest` to `newest`, as tw_version has them in `version`.
 */
typedef struct tw_range {
  /*
   The oldest.
   */
  uint64_t oldest;
  /*
   The newest.
   */
  uint64_t newest;
} tw_range;

/*
 A content of a block that can be read.
 */
typedef struct tw_content {
  /*
   The versions that have it.
   */
  struct tw_range versions;
  /*
   What it costs to read, as tw_cost() says.
   */
  int64_t cost;
} tw_content;

/*
 Content that a block has in some of the versions that can be read.
 */
typedef struct tw_block_version {
  /*
   The oldest version that has it and can be read.
   */
  struct tw_version oldest;
  /*
   The newest one. The versions in between have it too.
   */
  struct tw_version newest;
  /*
   1 if something is stored, 0 if the block reads as zeros.
   */
  int stored;
} tw_block_version;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a volume, by the folder of a chained one, or by the device or file of one that is updated in
 place: through the process that serves it, or in this one; or by the address of one on another machine,
 thalweg://HOST:PORT/NAME; or by the addresses of several nodes of one, a primary and replicas of it, with commas
 between them, each such an address or the folder of a volume that is served: reads for a session then go to the
 cheapest node that may serve them. Null when that fails; tw_errno() and tw_error() say why: EACCES when keys are
 missing or refused, ENOTCONN when the server cannot be reached.
 */
struct tw_volume *tw_open(const char *path);

/*
 As tw_open(), of a volume that is updated in place and has its journal on a device of its own.
 */
struct tw_volume *tw_open_journal(const char *path, const char *journal);

/*
 Closes a volume. Transactions that run on it, of any thread, are aborted. No thread may be in a call
 on it, nor call anything on it later, whatever this returns.
 */
int tw_close(struct tw_volume *volume);

/*
 The number of blocks, 0 for a null pointer.
 */
uint64_t tw_blocks(const struct tw_volume *volume);

/*
 Whether another process serves the volume: 1, or 0 when this process has opened it.
 */
int tw_is_served(const struct tw_volume *volume);

/*
 Begins this thread's transaction on the volume: with TW_STRICT, TW_SNAPSHOT or TW_READ_ONLY. Inside a
 transaction it opens an inner pair, whatever the isolation.
 */
int tw_begin_tx(const struct tw_volume *volume,
                int isolation);

/*
 Ends the innermost pair. 1: an inner pair ended, or the transaction has committed and is durable. 0: the
 transaction was aborted; tw_errno() says why: EAGAIN for a conflict, ECANCELED when it had been aborted
 before. A negative errno: no transaction has begun, or it is unknown whether it committed.
 */
int tw_end_tx(const struct tw_volume *volume);

/*
 Aborts the innermost pair, without any effect. An inner abort dooms the enclosing transaction.
 */
int tw_abort_tx(const struct tw_volume *volume);

/*
 Releases this thread's transaction: `handle` is for the takeover by another thread or, when the volume is
 served, by another process. Not inside an inner pair. A transaction without a takeover is aborted after 60
 s.
 */
int tw_release_tx(const struct tw_volume *volume,
                  struct tw_handle *handle);

/*
 Takes over a released transaction, as this thread's, which must have none. A handle is valid once.
 */
int tw_takeover_tx(const struct tw_volume *volume, const struct tw_handle *handle);

/*
 Narrows this thread's last read or write of a block in its transaction to `size` bytes from `start` on.
 Several marks add up. Without a transaction it has no effect.
 */
int tw_mark_accessed(const struct tw_volume *volume,
                     uint64_t block,
                     uint32_t start,
                     uint32_t size);

/*
 Asks for a block to be kept in memory. A hint.
 */
int tw_please_cache(const struct tw_volume *volume, uint64_t block);

/*
 Reads `count` blocks of the volume into `buffer`, which has `count` * TW_BLOCK_SIZE bytes. Unwritten
 blocks read as zeros.
 */
int tw_read(const struct tw_volume *volume,
            uint64_t block,
            uint32_t count,
            void *buffer);

/*
 Writes `count` blocks from `buffer`, which has `count` * TW_BLOCK_SIZE bytes. A transaction may write 256
 blocks. Fails with -EINVAL on a volume with partitions, as tw_discard() and tw_mark_accessed(): there, raw
 blocks are in raw partitions, see tw_raw_open().
 */
int tw_write(const struct tw_volume *volume,
             uint64_t block,
             uint32_t count,
             const void *buffer);

/*
 Discards `count` blocks: they read as zeros, and their space may be reclaimed.
 */
int tw_discard(const struct tw_volume *volume, uint64_t block, uint32_t count);

/*
 The text of this thread's last error: of a call that failed, or of a transaction that did not commit. It
 is valid until the thread's next such call.
 */
const char *tw_error(void);

/*
 The last error as a (positive) errno; 0 when no call has failed.
 */
int tw_errno(void);

/*
 Opens a filesystem. `place` is a volume as for tw_open(), which no other process may have open, and which this process
 opens; or SERVER:/PATH or SERVER:PORT:/PATH, a directory of a filesystem that a server shares, as for `thalweg
 mount`. `options` may be null. Calls act for the user, the groups and the umask that the calling thread has now; see
 tw_fs_as_user(). Null when that fails; tw_errno() and tw_error() say why: ENOENT when there is no such
 volume, or no filesystem on it, EBUSY when another process mounts or serves the volume, EACCES when keys are missing or
 refused, ENOTCONN when the server cannot be reached.
 */
struct tw_fs *tw_fs_open(const char *place,
                         const struct tw_fs_options *options);

/*
 The same filesystem for another user, with `count` further groups at `groups`, and a umask: for servers that act for
 several users. The program itself may open the whole filesystem, so these checks bind no one but the program.
 Close it before the filesystem that it came from. Null when that fails.
 */
struct tw_fs *tw_fs_as_user(const struct tw_fs *fs,
                            uint32_t uid,
                            uint32_t gid,
                            const uint32_t *groups,
                            size_t count,
                            uint32_t umask);

/*
 Makes everything durable, and closes a filesystem. Files, directories and other users of it must be closed before, and
 no thread may be in a call on it. It is closed whatever this returns. One that came from tw_fs_as_user() is released,
 and the filesystem stays open.
 */
int tw_fs_close(struct tw_fs *fs);

/*
 Makes a directory: mkdir(2).
 */
int tw_fs_mkdir(const struct tw_fs *fs, const char *path, uint32_t mode);

/*
 Makes a named pipe, the name of a socket, a device or an empty file: mknod(2). Only their names are of use here: they
 cannot be opened.
 */
int tw_fs_mknod(const struct tw_fs *fs,
                const char *path,
                uint32_t mode,
                uint32_t device);

/*
 Removes an empty directory: rmdir(2).
 */
int tw_fs_rmdir(const struct tw_fs *fs, const char *path);

/*
 Removes a name: unlink(2).
 */
int tw_fs_unlink(const struct tw_fs *fs, const char *path);

/*
 Renames atomically: rename(2).
 */
int tw_fs_rename(const struct tw_fs *fs, const char *from, const char *to);

/*
 As tw_fs_rename(), with one of the flags TW_RENAME_NOREPLACE and TW_RENAME_EXCHANGE, or 0: renameat2(2).
 */
int tw_fs_rename2(const struct tw_fs *fs,
                  const char *from,
                  const char *to,
                  int flags);

/*
 Gives an inode another name: linkat(2), with TW_FOLLOW or 0.
 */
int tw_fs_link(const struct tw_fs *fs, const char *from, const char *to, int flags);

/*
 Makes a symbolic link to `target`: symlink(2). An absolute target begins at the filesystem's root.
 */
int tw_fs_symlink(const struct tw_fs *fs, const char *target, const char *path);

/*
 Copies the target of a symbolic link to `buffer`, at most `size` bytes of it, without a zero at the end. Returns the
 length of the whole target.
 */
int64_t tw_fs_readlink(const struct tw_fs *fs,
                       const char *path,
                       char *buffer,
                       size_t size);

/*
 Returns when everything survives a crash.
 */
int tw_fs_sync(const struct tw_fs *fs);

/*
 The attributes of what a path leads to: stat(2).
 */
int tw_fs_stat(const struct tw_fs *fs, const char *path, struct tw_stat *stat);

/*
 As tw_fs_stat(), but a symbolic link at the end of the path is not followed: lstat(2).
 */
int tw_fs_lstat(const struct tw_fs *fs, const char *path, struct tw_stat *stat);

/*
 Whether the user may do all of `mode`, of R_OK, W_OK and X_OK, or for F_OK whether it is there; with TW_NOFOLLOW or 0:
 faccessat(2). 0, or -EACCES or another errno.
 */
int tw_fs_access(const struct tw_fs *fs,
                 const char *path,
                 int mode,
                 int flags);

/*
 Sets the permission bits: chmod(2).
 */
int tw_fs_chmod(const struct tw_fs *fs, const char *path, uint32_t mode);

/*
 Sets owner and group, each unless it is (uint32_t)-1; with TW_NOFOLLOW or 0: fchownat(2).
 */
int tw_fs_chown(const struct tw_fs *fs, const char *path, uint32_t uid, uint32_t gid, int flags);

/*
 Sets the times of the last read, times[0], and of the last change, times[1]; null for now. `nanos` may be TW_NOW or
 TW_OMIT. With TW_NOFOLLOW or 0: utimensat(2).
 */
int tw_fs_utimens(const struct tw_fs *fs,
                  const char *path,
                  const struct tw_time *times,
                  int flags);

/*
 Sets the size of a file: truncate(2).
 */
int tw_fs_truncate(const struct tw_fs *fs, const char *path, int64_t size);

/*
 How full the filesystem is: statvfs(3).
 */
int tw_fs_statfs(const struct tw_fs *fs, struct tw_statfs *statfs);

/*
 Opens a directory to list it: opendir(3). Null when that fails.
 */
struct tw_dir *tw_fs_opendir(const struct tw_fs *fs, const char *path);

/*
 The next entry: 1, or 0 at the end. `.` and `..` are not among them.
 */
int tw_dir_read(struct tw_dir *dir, struct tw_entry *entry);

/*
 Begins at the first entry again: rewinddir(3).
 */
int tw_dir_rewind(struct tw_dir *dir);

/*
 Closes a directory. Null is ignored.
 */
void tw_dir_close(struct tw_dir *dir);

/*
 How far all changes of a file have come: a TW_LEVEL. Nothing is synced for it. Fails with -EIO when changes were lost.
 */
int tw_file_level(const struct tw_file *file);

/*
 Brings all changes of a file to a level, and waits until they have come to it: 1, or 0 when the replicas do not have them
 within `milliseconds`. With a negative number it waits for any time. The way to TW_LEVEL_SERVER takes as long as
 tw_file_fsync(). Fails with -ENODATA when no replica of the volume is connected.
 */
int tw_file_wait_for(const struct tw_file *file,
                     int level,
                     int64_t milliseconds);

/*
 As tw_file_level(), of what a path leads to.
 */
int tw_fs_level(const struct tw_fs *fs, const char *path);

/*
 As tw_file_wait_for(), of what a path leads to.
 */
int tw_fs_wait_for(const struct tw_fs *fs, const char *path, int level, int64_t milliseconds);

/*
 Takes or releases a lock of the whole file: flock(2), with LOCK_SH, LOCK_EX or LOCK_UN, and LOCK_NB. The open file owns
 it. On a shared filesystem it is a lock of all bytes, and excludes those of tw_file_lock(), as on a mount.
 */
int tw_file_flock(const struct tw_file *file,
                  int operation);

/*
 Takes or releases a lock of a range of bytes, and waits for it if `wait` is not 0: fcntl(2) with F_OFD_SETLK or
 F_OFD_SETLKW. The open file owns it, not the process; it excludes locks of other open files, of other programs and on
 mounts. Fails with -EAGAIN when another owner has it.
 */
int tw_file_lock(const struct tw_file *file,
                 const struct tw_lock *lock,
                 int wait);

/*
 Whether a lock could be taken: `lock` becomes one of another owner that excludes it, or its type F_UNLCK: fcntl(2) with
 F_OFD_GETLK.
 */
int tw_file_test_lock(const struct tw_file *file,
                      struct tw_lock *lock);

/*
 Opens a file or a directory: open(2), with its flags. A new file gets `mode`, without the bits of the umask. O_CLOEXEC,
 O_DIRECT, O_NOATIME and O_NONBLOCK have no effect; O_PATH and O_TMPFILE are refused. Null when that fails.
 */
struct tw_file *tw_file_open(const struct tw_fs *fs,
                             const char *path,
                             int flags,
                             uint32_t mode);

/*
 Closes a file, which ends its locks. No thread may be in a call on it. It is closed whatever this returns.
 */
int tw_file_close(struct tw_file *file);

/*
 Reads at most `len` bytes from `offset` on: how many, less than `len` only at the end, or at 2 GiB: pread(2).
 */
int64_t tw_file_pread(const struct tw_file *file,
                      void *buffer,
                      size_t len,
                      int64_t offset);

/*
 Writes `len` bytes from `offset` on; to the end if the file was opened with O_APPEND. How many: all of them below 2 GiB:
 pwrite(2).
 */
int64_t tw_file_pwrite(const struct tw_file *file,
                       const void *buffer,
                       size_t len,
                       int64_t offset);

/*
 As tw_file_pread(), at the file's position, which moves: read(2).
 */
int64_t tw_file_read(const struct tw_file *file, void *buffer, size_t len);

/*
 As tw_file_pwrite(), at the file's position, which moves: write(2).
 */
int64_t tw_file_write(const struct tw_file *file, const void *buffer, size_t len);

/*
 Writes all `len` bytes, below 2 GiB, to the end of the file, wherever that is when the write takes effect. Returns the
 offset of the first one. The position does not move.
 */
int64_t tw_file_append(const struct tw_file *file,
                       const void *buffer,
                       size_t len);

/*
 Moves the position, from SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE, and returns it: lseek(2).
 */
int64_t tw_file_lseek(const struct tw_file *file,
                      int64_t offset,
                      int whence);

/*
 The attributes of an open file: fstat(2).
 */
int tw_file_stat(const struct tw_file *file, struct tw_stat *stat);

/*
 Sets the permission bits of an open file: fchmod(2).
 */
int tw_file_chmod(const struct tw_file *file, uint32_t mode);

/*
 Sets owner and group of an open file, each unless it is (uint32_t)-1: fchown(2).
 */
int tw_file_chown(const struct tw_file *file, uint32_t uid, uint32_t gid);

/*
 Sets the times of an open file, as tw_fs_utimens(): futimens(2).
 */
int tw_file_utimens(const struct tw_file *file, const struct tw_time *times);

/*
 Sets the size of a file that is open to be written: ftruncate(2).
 */
int tw_file_truncate(const struct tw_file *file, int64_t size);

/*
 Returns when all changes of a file survive a crash, or those of the names in a directory: fsync(2).
 */
int tw_file_fsync(const struct tw_file *file);

/*
 As tw_file_fsync(), of the content and the attributes that are needed to read it: fdatasync(2).
 */
int tw_file_fdatasync(const struct tw_file *file);

/*
 Reserves storage, or with FALLOC_FL_PUNCH_HOLE or FALLOC_FL_ZERO_RANGE frees or zeroes it; with FALLOC_FL_KEEP_SIZE
 the file does not grow: fallocate(2).
 */
int tw_file_fallocate(const struct tw_file *file,
                      int mode,
                      int64_t offset,
                      int64_t len);

/*
 Copies the value of an extended attribute to `value`, which has `size` bytes, and returns its length; with a size of 0,
 only its length. Fails with -ERANGE if it does not fit, with -ENODATA if there is none. With TW_NOFOLLOW or 0:
 getxattr(2).
 */
int64_t tw_fs_getxattr(const struct tw_fs *fs,
                       const char *path,
                       const char *name,
                       void *value,
                       size_t size,
                       int flags);

/*
 Sets an extended attribute; with TW_XATTR_CREATE, TW_XATTR_REPLACE or neither, and TW_NOFOLLOW: setxattr(2).
 */
int tw_fs_setxattr(const struct tw_fs *fs,
                   const char *path,
                   const char *name,
                   const void *value,
                   size_t size,
                   int flags);

/*
 Removes an extended attribute; with TW_NOFOLLOW or 0: removexattr(2).
 */
int tw_fs_removexattr(const struct tw_fs *fs, const char *path, const char *name, int flags);

/*
 Copies the names of the extended attributes, each with a zero behind it, to `list`, which has `size` bytes, and returns
 how many bytes these are; with a size of 0, only how many. With TW_NOFOLLOW or 0: listxattr(2).
 */
int64_t tw_fs_listxattr(const struct tw_fs *fs,
                        const char *path,
                        char *list,
                        size_t size,
                        int flags);

/*
 Writes the position of a volume, VOLUME:TIMELINE:VERSION, into `text`, which has TW_POSITION_TEXT bytes: it names the
 volume's newest state, on this machine and on those of its replicas. Fails with -ENODATA when the volume has had no
 replica.
 */
int tw_position(const struct tw_volume *volume,
                char *text);

/*
 Waits until a volume, which may be a replica, has durably reached a position: 1, or 0 when it has not within
 `milliseconds`. With a negative number it waits for any time. Fails with -EINVAL for a text that is no position, and when
 the volume never reaches it: the position is of another volume, or of one that has gone another way.
 */
int tw_wait(const struct tw_volume *volume,
            const char *position,
            int64_t milliseconds);

/*
 Makes a raw partition of `blocks` blocks; with 0, of the longest free run. Not inside a transaction.
 */
int tw_raw_create(const struct tw_volume *volume,
                  const char *name,
                  uint64_t blocks);

/*
 Opens a raw partition. Null when that fails; tw_errno() and tw_error() say why.
 */
struct tw_raw *tw_raw_open(const struct tw_volume *volume, const char *name);

/*
 Closes a raw partition. Null is ignored.
 */
void tw_raw_close(struct tw_raw *raw);

/*
 The number of blocks of a raw partition, 0 for a null pointer.
 */
uint64_t tw_raw_blocks(const struct tw_raw *raw);

/*
 Reads `count` blocks of a raw partition, as tw_read().
 */
int tw_raw_read(const struct tw_raw *raw, uint64_t block, uint32_t count, void *buffer);

/*
 As tw_raw_read(), and `version` becomes the version that the blocks are of: see tw_read_with_version().
 */
int tw_raw_read_with_version(const struct tw_raw *raw,
                             uint64_t block,
                             uint32_t count,
                             void *buffer,
                             struct tw_version *version);

/*
 Writes `count` blocks of a raw partition, as tw_write().
 */
int tw_raw_write(const struct tw_raw *raw, uint64_t block, uint32_t count, const void *buffer);

/*
 Discards `count` blocks of a raw partition: they read as zeros, and their space may be reclaimed.
 */
int tw_raw_discard(const struct tw_raw *raw, uint64_t block, uint32_t count);

/*
 Narrows this thread's last read or write of a block of a raw partition, as tw_mark_accessed().
 */
int tw_raw_mark_accessed(const struct tw_raw *raw, uint64_t block, uint32_t start, uint32_t size);

/*
 Asks for a block of a raw partition to be kept in memory. A hint.
 */
int tw_raw_please_cache(const struct tw_raw *raw, uint64_t block);

/*
 Makes a session with a guarantee, as in "read-my-writes,bounded=5s": one or several of strong, eventual,
 read-my-writes, monotonic-reads, monotonic-writes, writes-follow-reads, causal, bounded=TIME, updates=NUMBER, or at=VERSION
 alone. Null when there is no such guarantee or it contradicts itself; tw_errno() is EINVAL then, and tw_error() says
 why.
 */
struct tw_session *tw_session_new(const char *guarantee);

/*
 Makes a session that goes on where another one was when it was saved as `text`, in this process or elsewhere. Null as
 tw_session_new(), and when the text is of no session.
 */
struct tw_session *tw_session_resume(const char *guarantee,
                                     const char *text);

/*
 Saves a session as `text`, which has TW_SESSION_TEXT bytes, for tw_session_resume(). The volume makes durable what
 the session has seen of it: a crash does not take that back.
 */
int tw_session_save(const struct tw_volume *volume,
                    const struct tw_session *session,
                    char *text);

/*
 Closes a session. Null is ignored. No thread may be in a call with it.
 */
void tw_session_close(struct tw_session *session);

/*
 Reads a block of the volume into `buffer`, which has TW_BLOCK_SIZE bytes: the cheapest content that the session's
 guarantee allows. `got` becomes what that is. The read is a transaction of its own: inside of a transaction of this
 thread it fails with -EINVAL, as all calls for sessions. Where this volume cannot give the guarantee it fails with
 -ENODATA, -EREMOTE, -ETIME or -EREMCHG.
 */
int tw_read_for(const struct tw_volume *volume,
                const struct tw_session *session,
                uint64_t block,
                void *buffer,
                struct tw_got *got);

/*
 Writes a block for a session, from `buffer`, which has TW_BLOCK_SIZE bytes; durable when the call returns. `version`
 becomes the version of the write. Fails with -EINVAL on a volume with partitions, as tw_write(), and with -ENODATA when
 the guarantee orders it after something that the volume does not have yet.
 */
int tw_write_for(const struct tw_volume *volume,
                 const struct tw_session *session,
                 uint64_t block,
                 const void *buffer,
                 uint64_t *version);

/*
 Discards a block for a session, as tw_write_for().
 */
int tw_discard_for(const struct tw_volume *volume,
                   const struct tw_session *session,
                   uint64_t block,
                   uint64_t *version);

/*
 As tw_read_for(), of a raw partition.
 */
int tw_raw_read_for(const struct tw_raw *raw,
                    const struct tw_session *session,
                    uint64_t block,
                    void *buffer,
                    struct tw_got *got);

/*
 As tw_write_for(), of a raw partition.
 */
int tw_raw_write_for(const struct tw_raw *raw,
                     const struct tw_session *session,
                     uint64_t block,
                     const void *buffer,
                     uint64_t *version);

/*
 As tw_discard_for(), of a raw partition.
 */
int tw_raw_discard_for(const struct tw_raw *raw,
                       const struct tw_session *session,
                       uint64_t block,
                       uint64_t *version);

/*
 Gets the value of a key for a session, as tw_kv_get(): 1, or 0 when the key is absent. `got` becomes what that is, as in
 tw_read_for().
 */
int tw_kv_get_for(const struct tw_kv *kv,
                  const struct tw_session *session,
                  const void *key,
                  size_t key_len,
                  void *value,
                  size_t *value_len,
                  struct tw_got *got);

/*
 Sets the value of a key for a session; durable when the call returns. `version` becomes the version of the write, as in
 tw_write_for().
 */
int tw_kv_put_for(const struct tw_kv *kv,
                  const struct tw_session *session,
                  const void *key,
                  size_t key_len,
                  const void *value,
                  size_t value_len,
                  uint64_t *version);

/*
 Opens a snapshot: until tw_close_snapshot() this thread's reads, of blocks and of keys, see this version, and its writes
 fail with -EINVAL. It is a transaction of the thread, and keeps the version. Fails with -ESTALE when the version is not
 kept, with -ENODATA when it is one of the future, and with -EINVAL inside of a transaction or another snapshot.
 */
int tw_open_snapshot(const struct tw_volume *volume,
                     uint64_t version);

/*
 Closes this thread's snapshot. Fails with -EINVAL when none is open, so also when it was closed before, and when a
 transaction is open inside of it; with -ECANCELED when it was idle for too long, and its last reads have failed.
 */
int tw_close_snapshot(const struct tw_volume *volume);

/*
 As tw_read(), of a version. Fails as tw_open_snapshot().
 */
int tw_read_at(const struct tw_volume *volume,
               uint64_t version,
               uint64_t block,
               uint32_t count,
               void *buffer);

/*
 As tw_raw_read(), of a version. Fails as tw_open_snapshot(), and with -ENOENT when the version does not have the
 partition.
 */
int tw_raw_read_at(const struct tw_raw *raw,
                   uint64_t version,
                   uint64_t block,
                   uint32_t count,
                   void *buffer);

/*
 As tw_kv_get(), of a version. Fails as tw_open_snapshot().
 */
int tw_kv_get_at(const struct tw_kv *kv,
                 uint64_t version,
                 const void *key,
                 size_t key_len,
                 void *value,
                 size_t *value_len);

/*
 The contents of a block in the versions from `oldest` to `newest`, as far as they can be read, oldest first, each with
 its cost; through a server, the newest ones only if there are tens of thousands. `count` is the room at `contents`, and becomes their number; with too little
 room the call fails with -ERANGE and copies nothing.
 */
int tw_contents(const struct tw_volume *volume,
                uint64_t block,
                uint64_t oldest,
                uint64_t newest,
                struct tw_content *contents,
                size_t *count);

/*
 What it costs to read a block at a version: the estimated time in nanoseconds, -1 when the content is in memory. Fails
 with -ESTALE when the version is not kept, and with -ENODATA when it is one of the future.
 */
int tw_cost(const struct tw_volume *volume,
            uint64_t block,
            uint64_t version,
            int64_t *cost);

/*
 The versions in which a block has the content of a version, as far as they can be read. Fails as tw_cost().
 */
int tw_version_range(const struct tw_volume *volume,
                     uint64_t block,
                     uint64_t version,
                     struct tw_range *versions);

/*
 The block of the volume that is a block of a raw partition, for tw_cost(), tw_version_range() and tw_contents().
 */
int tw_raw_place(const struct tw_raw *raw,
                 uint64_t block,
                 uint64_t *at);

/*
 What it costs to read a key at a version: that of the dearest block on the way to its value, as far as this is in memory,
 or else of the first block that is not. Fails as tw_cost().
 */
int tw_kv_cost(const struct tw_kv *kv,
               const void *key,
               size_t key_len,
               uint64_t version,
               int64_t *cost);

/*
 The versions in which a key is known to have the value of a version. Fails as tw_cost().
 */
int tw_kv_version_range(const struct tw_kv *kv,
                        const void *key,
                        size_t key_len,
                        uint64_t version,
                        struct tw_range *versions);

/*
 Makes a partition for a store, TW_KV_BTREE or TW_KV_HASH, of `blocks` blocks; with 0, of the longest free
 run. Not inside a transaction.
 */
int tw_kv_create(const struct tw_volume *volume,
                 const char *name,
                 int kind,
                 uint64_t blocks);

/*
 Opens the store in a partition. Null when that fails; tw_errno() and tw_error() say why.
 */
struct tw_kv *tw_kv_open(const struct tw_volume *volume, const char *name);

/*
 Closes a store. Null is ignored.
 */
void tw_kv_close(struct tw_kv *kv);

/*
 Sets the value of a key. Inside this thread's transaction it is part of that; otherwise it is durable when
 the call returns.
 */
int tw_kv_put(const struct tw_kv *kv,
              const void *key,
              size_t key_len,
              const void *value,
              size_t value_len);

/*
 Gets the value of a key: 1, or 0 when the key is absent. `value_len` is the room at `value`, and becomes
 the value's length; with too little room the call fails with -ERANGE, and the value is not copied.
 */
int tw_kv_get(const struct tw_kv *kv,
              const void *key,
              size_t key_len,
              void *value,
              size_t *value_len);

/*
 As tw_kv_get(), and `version` becomes the version that the value is of, or of which the key is absent.
 */
int tw_kv_get_with_version(const struct tw_kv *kv,
                           const void *key,
                           size_t key_len,
                           void *value,
                           size_t *value_len,
                           struct tw_version *version);

/*
 Deletes a key: 1, or 0 when it was absent.
 */
int tw_kv_delete(const struct tw_kv *kv, const void *key, size_t key_len);

/*
 Iterates over the keys in order, from `from` (inclusive) to `to` (exclusive), each unless it is null; for
 a hash table both must be null. The iterator sees what this thread's transaction sees, or the state now.
 Null when that fails.
 */
struct tw_kv_iter *tw_kv_scan(const struct tw_kv *kv,
                              const void *from,
                              size_t from_len,
                              const void *to,
                              size_t to_len);

/*
 The next key and value: 1, or 0 at the end. The pointers are valid until the next call.
 */
int tw_kv_next(struct tw_kv_iter *walk,
               const void **key,
               size_t *key_len,
               const void **value,
               size_t *value_len);

/*
 Closes an iterator. Null is ignored.
 */
void tw_kv_iter_close(struct tw_kv_iter *walk);

/*
 Writes the text of a version, EPOCH.VERSION, into `text`, which has TW_VERSION_TEXT bytes.
 */
int tw_version_text(struct tw_version version, char *text);

/*
 Reads a version from its text, as in 7.1234. Fails with -EINVAL for any other text.
 */
int tw_version_parse(const char *text, struct tw_version *version);

/*
 Begins this thread's transaction on a version: read-only, and for as long as the transaction runs the version is
 kept. Fails with -ESTALE when the version is not kept, and with -EINVAL inside a transaction that reads another
 version.
 */
int tw_begin_tx_at(const struct tw_volume *volume,
                   struct tw_version version);

/*
 The version that this thread's transaction reads.
 */
int tw_tx_version(const struct tw_volume *volume, struct tw_version *version);

/*
 As tw_end_tx(), and when the outermost pair has committed, `version` becomes the version of the commit: the one
 that the transaction read if it wrote nothing. Otherwise `version` is left alone.
 */
int tw_end_tx_with_version(const struct tw_volume *volume,
                           struct tw_version *version);

/*
 As tw_read(), and `version` becomes the version that the blocks are of. Outside of a transaction a crash may
 still lose that version. Inside of one the blocks also have what the transaction itself wrote.
 */
int tw_read_with_version(const struct tw_volume *volume,
                         uint64_t block,
                         uint32_t count,
                         void *buffer,
                         struct tw_version *version);

/*
 The contents of a block that can be read, oldest first; a transaction can begin on the oldest and on the newest
 version of each. `count` is the room at `versions`, and becomes their number; with too little room the call fails
 with -ERANGE and copies nothing.
 */
int tw_versions(const struct tw_volume *volume,
                uint64_t block,
                struct tw_block_version *versions,
                size_t *count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* THALWEG_H */
