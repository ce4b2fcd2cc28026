/*
 * Thalweg: volumes with transactions (Isotope's calls).
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
 *   -EBUSY      another process has the volume open, and does not serve it
 *   -ENOSPC     the volume is full
 *   -EBADMSG    a stored block does not match its checksum
 *   -EROFS      the volume refuses writes since a device failed, or since a replica has replaced it
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
 * A volume may be used by all threads at once. A child of fork() must not use its parent's volumes.
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
