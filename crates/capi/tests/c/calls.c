/* The calls and their rules one by one, and processes that are killed in the middle. */

#include <unistd.h>

#include "check.h"

const char *where;
tw_volume *volume;

void put(uint64_t block, int byte)
{
    unsigned char content[TW_BLOCK_SIZE];
    memset(content, byte, sizeof content);
    CHECK(tw_write(volume, block, 1, content), 0);
}

int get(uint64_t block)
{
    unsigned char content[TW_BLOCK_SIZE];
    CHECK(tw_read(volume, block, 1, content), 0);
    CHECK(content[0], content[TW_BLOCK_SIZE - 1]);
    return content[0];
}

/* Calls of another thread are not part of this thread's transaction. */
struct job {
    void (*run)(void *);
    void *with;
};

static void *run_job(void *job)
{
    ((struct job *)job)->run(((struct job *)job)->with);
    return NULL;
}

void elsewhere(void (*run)(void *), void *with)
{
    struct job job = {run, with};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_job, &job), 0);
    CHECK(pthread_join(thread, NULL), 0);
}

static void put_elsewhere(void *block)
{
    put(*(uint64_t *)block, 77);
}

static void get_elsewhere(void *block)
{
    *(uint64_t *)block = (uint64_t)get(*(uint64_t *)block);
}

static int seen_elsewhere(uint64_t block)
{
    elsewhere(get_elsewhere, &block);
    return (int)block;
}

/* Without a transaction, and with a lost one, every call fails with `wanted`. */
static void all_fail(int wanted)
{
    unsigned char content[TW_BLOCK_SIZE] = {0};
    tw_handle handle;
    CHECK(tw_read(volume, 0, 1, content), wanted);
    CHECK(tw_write(volume, 0, 1, content), wanted);
    CHECK(tw_discard(volume, 0, 1), wanted);
    CHECK(tw_mark_accessed(volume, 0, 0, 1), wanted);
    CHECK(tw_please_cache(volume, 0), wanted);
    CHECK(tw_begin_tx(volume, TW_STRICT), wanted);
    CHECK(tw_release_tx(volume, &handle), wanted);
}

static void singletons(void)
{
    where = "outside of a transaction";
    unsigned char content[2 * TW_BLOCK_SIZE];
    memset(content, 3, sizeof content);
    CHECK(tw_write(volume, 10, 2, content), 0);
    CHECK(seen_elsewhere(11), 3);
    CHECK(get(10), 3);
    CHECK(tw_discard(volume, 10, 1), 0);
    CHECK(get(10), 0);
    CHECK(get(11), 3);
    CHECK(tw_mark_accessed(volume, 10, 0, 16), 0);
    CHECK(tw_please_cache(volume, 10), 0);
    tw_handle handle;
    CHECK(tw_end_tx(volume), -ESRCH);
    CHECK(tw_abort_tx(volume), -ESRCH);
    CHECK(tw_release_tx(volume, &handle), -ESRCH);
    /* A write outside of a transaction always commits, whatever else runs. */
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(get(12), 0);
    uint64_t block = 12;
    elsewhere(put_elsewhere, &block);
    CHECK(get(12), 0);
    put(13, 1);
    CHECK(tw_end_tx(volume), 0);
    CHECK(tw_errno(), EAGAIN);
    CHECK(get(12), 77);
    CHECK(get(13), 0);
}

static void transactions(void)
{
    where = "a transaction";
    for (int isolation = TW_STRICT; isolation <= TW_SNAPSHOT; isolation++) {
        put(20, 1);
        CHECK(tw_begin_tx(volume, isolation), 0);
        CHECK(get(20), 1);
        put(20, 2);
        CHECK(get(20), 2);
        CHECK(seen_elsewhere(20), 1);
        CHECK(tw_end_tx(volume), 1);
        CHECK(seen_elsewhere(20), 2);
        CHECK(tw_begin_tx(volume, isolation), 0);
        CHECK(tw_discard(volume, 20, 1), 0);
        CHECK(get(20), 0);
        CHECK(tw_abort_tx(volume), 0);
        CHECK(get(20), 2);
    }
    where = "read-only";
    unsigned char content[TW_BLOCK_SIZE] = {0};
    CHECK(tw_begin_tx(volume, TW_READ_ONLY), 0);
    CHECK(get(20), 2);
    CHECK(tw_write(volume, 20, 1, content), -EINVAL);
    CHECK(tw_end_tx(volume), 1);
}

static void version_is(tw_version version, uint64_t epoch, uint64_t number)
{
    CHECK(version.epoch, epoch);
    CHECK(version.version, number);
}

/* Keeps a version for as long as another thread works. */
static void at_a_version(void *at)
{
    tw_version own, named = *(tw_version *)at;
    CHECK(tw_begin_tx_at(volume, named), 0);
    CHECK(tw_tx_version(volume, &own), 0);
    version_is(own, named.epoch, named.version);
    CHECK(get(25), 1);
    unsigned char content[TW_BLOCK_SIZE] = {0};
    CHECK(tw_write(volume, 25, 1, content), -EINVAL);
    /* An inner pair reads the same version, or is refused. */
    CHECK(tw_begin_tx_at(volume, named), 0);
    tw_version none = {0, 0};
    CHECK(tw_end_tx_with_version(volume, &none), 1);
    version_is(none, 0, 0);
    named.version++;
    CHECK(tw_begin_tx_at(volume, named), -EINVAL);
    CHECK(tw_end_tx_with_version(volume, &own), 1);
    version_is(own, named.epoch, named.version - 1);
}

static void versions(void)
{
    unsigned char content[TW_BLOCK_SIZE] = {0};
    tw_version first, second, read;
    where = "a commit has a version";
    memset(content, 1, sizeof content);
    CHECK(tw_tx_version(volume, &read), -ESRCH);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_write(volume, 25, 1, content), 0);
    CHECK(tw_end_tx_with_version(volume, &first), 1);
    CHECK(first.version > 0, 1);
    CHECK(tw_read_with_version(volume, 25, 1, content, &read), 0);
    CHECK(content[0], 1);
    version_is(read, first.epoch, first.version);

    where = "a transaction keeps its version";
    CHECK(tw_begin_tx(volume, TW_SNAPSHOT), 0);
    CHECK(tw_tx_version(volume, &read), 0);
    version_is(read, first.epoch, first.version);
    uint64_t block = 25;
    elsewhere(put_elsewhere, &block);
    elsewhere(at_a_version, &first);
    CHECK(tw_read_with_version(volume, 25, 1, content, &read), 0);
    CHECK(content[0], 1);
    version_is(read, first.epoch, first.version);
    tw_block_version found[2];
    size_t count = 1;
    CHECK(tw_versions(volume, 25, found, &count), -ERANGE);
    CHECK(count, 2);
    CHECK(tw_versions(volume, 25, found, &count), 0);
    CHECK(count, 2);
    version_is(found[0].oldest, first.epoch, first.version);
    version_is(found[0].newest, first.epoch, first.version);
    CHECK(found[0].stored, 1);
    second = found[1].newest;
    CHECK(second.version > first.version, 1);
    CHECK(tw_end_tx(volume), 1);

    where = "a version that is not kept is gone";
    CHECK(tw_begin_tx_at(volume, first), -ESTALE);
    CHECK(tw_errno(), ESTALE);
    CHECK(tw_begin_tx_at(volume, second), 0);
    CHECK(get(25), 77);
    CHECK(tw_abort_tx(volume), 0);
    second.epoch++;
    CHECK(tw_begin_tx_at(volume, second), -ESTALE);

    where = "the text of a version";
    char text[TW_VERSION_TEXT];
    tw_version wide = {UINT64_MAX, UINT64_MAX}, small = {7, 1234};
    CHECK(tw_version_text(wide, text), 0);
    CHECK(strcmp(text, "18446744073709551615.18446744073709551615"), 0);
    CHECK(tw_version_parse(text, &read), 0);
    version_is(read, UINT64_MAX, UINT64_MAX);
    CHECK(tw_version_text(small, text), 0);
    CHECK(strcmp(text, "7.1234"), 0);
    CHECK(tw_version_parse("7.01234", &read), -EINVAL);

    where = "null pointers";
    CHECK(tw_version_parse(NULL, &read), -EINVAL);
    CHECK(tw_version_parse(text, NULL), -EINVAL);
    CHECK(tw_version_text(small, NULL), -EINVAL);
    CHECK(tw_tx_version(volume, NULL), -EINVAL);
    CHECK(tw_end_tx_with_version(volume, NULL), -EINVAL);
    CHECK(tw_read_with_version(volume, 25, 1, content, NULL), -EINVAL);
    CHECK(tw_versions(volume, 25, NULL, &count), -EINVAL);
    CHECK(tw_versions(volume, 25, found, NULL), -EINVAL);
    CHECK(tw_versions(volume, UINT64_MAX, found, &count), -EINVAL);
}

static void marks(void)
{
    where = "marks";
    unsigned char content[TW_BLOCK_SIZE];
    put(30, 0);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_read(volume, 30, 1, content), 0);
    CHECK(tw_mark_accessed(volume, 30, 64, 16), 0);
    content[64] = 1;
    CHECK(tw_write(volume, 30, 1, content), 0);
    CHECK(tw_mark_accessed(volume, 30, 64, 16), 0);
    tw_handle handle;
    CHECK(tw_release_tx(volume, &handle), 0);
    /* Another changes other bytes of the same block. */
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_read(volume, 30, 1, content), 0);
    CHECK(tw_mark_accessed(volume, 30, 0, 16), 0);
    content[0] = 1;
    CHECK(tw_write(volume, 30, 1, content), 0);
    CHECK(tw_mark_accessed(volume, 30, 0, 16), 0);
    CHECK(tw_end_tx(volume), 1);
    CHECK(tw_takeover_tx(volume, &handle), 0);
    CHECK(tw_end_tx(volume), 1);
    CHECK(tw_read(volume, 30, 1, content), 0);
    CHECK(content[0], 1);
    CHECK(content[64], 1);
}

static void nesting(void)
{
    unsigned char content[TW_BLOCK_SIZE] = {0};
    where = "an inner begin gives no new snapshot";
    put(40, 1);
    CHECK(tw_begin_tx(volume, TW_SNAPSHOT), 0);
    CHECK(get(41), 0);
    uint64_t block = 40;
    elsewhere(put_elsewhere, &block);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(get(40), 1);
    where = "an inner end succeeds and changes nothing";
    put(42, 5);
    CHECK(tw_end_tx(volume), 1);
    CHECK(seen_elsewhere(42), 0);
    CHECK(get(42), 5);
    put(43, 6);
    CHECK(tw_end_tx(volume), 1);
    CHECK(seen_elsewhere(42), 5);
    CHECK(seen_elsewhere(43), 6);

    where = "an inner abort dooms what is around it";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    put(42, 7);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_abort_tx(volume), 0);
    all_fail(-ECANCELED);
    CHECK(tw_abort_tx(volume), 0);
    all_fail(-ECANCELED);
    CHECK(tw_end_tx(volume), 0);
    CHECK(tw_errno(), ECANCELED);
    CHECK(tw_end_tx(volume), -ESRCH);
    CHECK(get(42), 5);
    where = "after it the thread is free";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_write(volume, 42, 1, content), 0);
    CHECK(tw_end_tx(volume), 1);
    CHECK(get(42), 0);

    where = "a nested pair is not released, and nothing is taken over inside of another";
    tw_handle handle = {{0}};
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_release_tx(volume, &handle), -EINVAL);
    CHECK(tw_takeover_tx(volume, &handle), -EINVAL);
    CHECK(tw_end_tx(volume), 1);
    CHECK(tw_end_tx(volume), 1);
}

static void take_and_end(void *handle)
{
    CHECK(tw_takeover_tx(volume, handle), 0);
    CHECK(get(50), 5);
    put(51, 6);
    CHECK(tw_end_tx(volume), 1);
}

static void take_and_vanish(void *handle)
{
    CHECK(tw_takeover_tx(volume, handle), 0);
    put(53, 9);
}

static void handing_over(void)
{
    tw_handle handle, wrong;
    where = "a released transaction goes on in another thread";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    put(50, 5);
    CHECK(tw_release_tx(volume, &handle), 0);
    CHECK(tw_end_tx(volume), -ESRCH);
    CHECK(get(50), 0);
    wrong = handle;
    wrong.bytes[3] ^= 1;
    CHECK(tw_takeover_tx(volume, &wrong), -ENOENT);
    elsewhere(take_and_end, &handle);
    CHECK(get(50), 5);
    CHECK(get(51), 6);
    where = "a handle serves once";
    CHECK(tw_takeover_tx(volume, &handle), -ENOENT);
    where = "a transaction ends with its thread";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    put(52, 5);
    CHECK(tw_release_tx(volume, &handle), 0);
    elsewhere(take_and_vanish, &handle);
    CHECK(tw_takeover_tx(volume, &handle), -ENOENT);
    CHECK(get(52), 0);
    CHECK(get(53), 0);
}

static void bad_input(void)
{
    unsigned char content[TW_BLOCK_SIZE] = {0};
    tw_handle handle;
    where = "bad input";
    uint64_t blocks = tw_blocks(volume);
    CHECK(tw_open(NULL) == NULL, 1);
    CHECK(tw_errno(), EINVAL);
    CHECK(tw_open("/nonexistent,/neither") == NULL, 1);
    CHECK(tw_errno(), ENOTCONN);
    CHECK(strstr(tw_error(), "no process serves /nonexistent") != NULL, 1);
    CHECK(tw_open("/nonexistent") == NULL, 1);
    CHECK(tw_errno(), ENOENT);
    CHECK(strlen(tw_error()) > 0, 1);
    CHECK(tw_close(NULL), -EINVAL);
    CHECK(tw_blocks(NULL), 0);
    CHECK(tw_begin_tx(NULL, TW_STRICT), -EINVAL);
    CHECK(tw_end_tx(NULL), -EINVAL);
    CHECK(tw_begin_tx(volume, 9), -EINVAL);
    CHECK(tw_begin_tx(volume, -1), -EINVAL);
    for (int inside = 0; inside < 2; inside++) {
        CHECK(tw_read(volume, 0, 1, NULL), -EINVAL);
        CHECK(tw_write(volume, 0, 1, NULL), -EINVAL);
        CHECK(tw_read(volume, blocks, 1, content), -EINVAL);
        CHECK(tw_write(volume, blocks, 1, content), -EINVAL);
        CHECK(tw_discard(volume, blocks - 1, 2), -EINVAL);
        CHECK(tw_read(volume, UINT64_MAX, 2, content), -EINVAL);
        CHECK(tw_write(volume, UINT64_MAX, 1, content), -EINVAL);
        CHECK(tw_discard(volume, UINT64_MAX, 2), -EINVAL);
        CHECK(tw_read(volume, 0, 0, NULL), 0);
        if (!inside)
            CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    }
    CHECK(tw_mark_accessed(volume, 5, 0, 1), -EINVAL);
    CHECK(tw_read(volume, 5, 1, content), 0);
    CHECK(tw_mark_accessed(volume, 5, 4096, 1), -EINVAL);
    CHECK(tw_mark_accessed(volume, 5, UINT32_MAX, UINT32_MAX), -EINVAL);
    CHECK(tw_release_tx(volume, NULL), -EINVAL);
    CHECK(tw_abort_tx(volume), 0);
    CHECK(tw_takeover_tx(volume, NULL), -EINVAL);
    memset(&handle, 7, sizeof handle);
    CHECK(tw_takeover_tx(volume, &handle), -ENOENT);

    where = "too many writes";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    for (uint64_t block = 100; block < 356; block++)
        put(block, 1);
    CHECK(tw_write(volume, 356, 1, content), -E2BIG);
    CHECK(tw_abort_tx(volume), 0);
    CHECK(get(100), 0);
    where = "too many transactions";
    tw_handle handles[256];
    for (int at = 0; at < 256; at++) {
        CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        CHECK(tw_release_tx(volume, &handles[at]), 0);
    }
    CHECK(tw_begin_tx(volume, TW_STRICT), -EMFILE);
    for (int at = 0; at < 256; at++) {
        CHECK(tw_takeover_tx(volume, &handles[at]), 0);
        CHECK(tw_abort_tx(volume), 0);
    }
}

static tw_kv *store(const char *name, int kind)
{
    CHECK(tw_kv_create(volume, name, kind, 128), 0);
    tw_kv *kv = tw_kv_open(volume, name);
    CHECK(kv != NULL, 1);
    return kv;
}

static int kv_get(const tw_kv *kv, const char *key)
{
    char value[64];
    size_t len = sizeof value;
    int found = tw_kv_get(kv, key, strlen(key), value, &len);
    if (found == 1)
        CHECK(len, 1);
    return found == 1 ? value[0] : found;
}

static void raw_put(const tw_raw *raw, uint64_t block, int byte)
{
    unsigned char content[TW_BLOCK_SIZE];
    memset(content, byte, sizeof content);
    CHECK(tw_raw_write(raw, block, 1, content), 0);
}

static int raw_get(const tw_raw *raw, uint64_t block)
{
    unsigned char content[TW_BLOCK_SIZE];
    CHECK(tw_raw_read(raw, block, 1, content), 0);
    CHECK(content[0], content[TW_BLOCK_SIZE - 1]);
    return content[0];
}

/* On a volume with partitions, raw blocks are those of a raw partition only. */
static void raw_blocks(void)
{
    unsigned char content[2 * TW_BLOCK_SIZE] = {0};
    where = "raw blocks";
    CHECK(tw_raw_open(volume, "blocks") == NULL, 1);
    CHECK(tw_errno(), ENOENT);
    CHECK(tw_raw_open(volume, "tree") == NULL, 1);
    CHECK(tw_errno(), EINVAL);
    CHECK(tw_raw_create(volume, "tree", 8), -EEXIST);
    CHECK(tw_raw_create(volume, "blocks", 8), 0);
    tw_raw *raw = tw_raw_open(volume, "blocks");
    CHECK(raw != NULL, 1);
    CHECK(tw_raw_blocks(raw), 8);
    CHECK(tw_raw_blocks(NULL), 0);
    for (int inside = 0; inside < 2; inside++) {
        if (inside)
            CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        CHECK(tw_write(volume, 7, 1, content), -EINVAL);
        CHECK(strstr(tw_error(), "the catalogue of partitions") != NULL, 1);
        CHECK(tw_discard(volume, 20, 1), -EINVAL);
        CHECK(strstr(tw_error(), "partition tree") != NULL, 1);
        CHECK(tw_read(volume, 7, 1, content), 0);
        CHECK(tw_raw_write(raw, 7, 2, content), -EINVAL);
        CHECK(tw_raw_write(raw, 8, 1, content), -EINVAL);
        CHECK(tw_raw_write(raw, UINT64_MAX, 2, content), -EINVAL);
        CHECK(tw_raw_read(raw, 8, 1, content), -EINVAL);
        CHECK(tw_raw_discard(raw, 7, 2), -EINVAL);
        CHECK(tw_raw_please_cache(raw, 8), -EINVAL);
        CHECK(tw_raw_read(raw, 0, 1, NULL), -EINVAL);
        CHECK(tw_raw_write(NULL, 0, 1, content), -EINVAL);
        raw_put(raw, 3, 3 + inside);
        CHECK(raw_get(raw, 3), 3 + inside);
        CHECK(tw_raw_please_cache(raw, 3), 0);
    }
    CHECK(tw_mark_accessed(volume, 7, 0, 8), -EINVAL);
    CHECK(tw_raw_mark_accessed(raw, 3, 0, TW_BLOCK_SIZE), 0);
    CHECK(tw_raw_mark_accessed(raw, 3, 1, TW_BLOCK_SIZE), -EINVAL);
    CHECK(tw_raw_mark_accessed(raw, 8, 0, 1), -EINVAL);
    CHECK(tw_abort_tx(volume), 0);
    CHECK(raw_get(raw, 3), 3);
    CHECK(tw_raw_discard(raw, 3, 1), 0);
    CHECK(raw_get(raw, 3), 0);
    tw_raw_close(raw);
    tw_raw_close(NULL);
}

/* One transaction over two stores and a raw block. */
static void stores(void)
{
    where = "stores";
    CHECK(tw_kv_open(volume, "nobody") == NULL, 1);
    CHECK(tw_errno(), ENOENT);
    tw_kv *tree = store("tree", TW_KV_BTREE), *table = store("table", TW_KV_HASH);
    CHECK(tw_kv_create(volume, "tree", TW_KV_BTREE, 128), -EEXIST);
    CHECK(tw_kv_create(volume, "other", 7, 128), -EINVAL);
    CHECK(tw_raw_create(volume, "raw", 4), 0);
    tw_raw *raw = tw_raw_open(volume, "raw");
    for (int commit = 0; commit < 2; commit++) {
        CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        CHECK(tw_kv_create(volume, "other", TW_KV_HASH, 128), -EINVAL);
        CHECK(tw_kv_put(tree, "k", 1, "t", 1), 0);
        CHECK(tw_kv_put(table, "k", 1, "h", 1), 0);
        raw_put(raw, 1, 4);
        CHECK(kv_get(tree, "k"), 't');
        CHECK(commit ? tw_end_tx(volume) : tw_abort_tx(volume), commit);
        CHECK(kv_get(tree, "k"), commit ? 't' : 0);
        CHECK(kv_get(table, "k"), commit ? 'h' : 0);
        CHECK(raw_get(raw, 1), commit ? 4 : 0);
    }
    tw_version now, also;
    char letter = 0;
    size_t letters = 1;
    unsigned char content[TW_BLOCK_SIZE];
    CHECK(tw_kv_get_with_version(tree, "k", 1, &letter, &letters, &now), 1);
    CHECK(letter, 't');
    CHECK(tw_kv_get_with_version(tree, "none", 4, &letter, &letters, &now), 0);
    CHECK(tw_kv_get_with_version(tree, "k", 1, &letter, &letters, NULL), -EINVAL);
    CHECK(tw_raw_read_with_version(raw, 1, 1, content, &also), 0);
    CHECK(content[0], 4);
    version_is(also, now.epoch, now.version);
    CHECK(tw_raw_read_with_version(raw, 1, 1, content, NULL), -EINVAL);
    for (char key = 'a'; key < 'g'; key++)
        CHECK(tw_kv_put(tree, &key, 1, &key, 1), 0);
    CHECK(tw_kv_delete(tree, "c", 1), 1);
    CHECK(tw_kv_delete(tree, "c", 1), 0);
    const void *key, *value;
    size_t key_len, value_len;
    char seen[8] = "";
    tw_kv_iter *walk = tw_kv_scan(tree, "b", 1, "f", 1);
    CHECK(walk != NULL, 1);
    while (tw_kv_next(walk, &key, &key_len, &value, &value_len) == 1)
        strncat(seen, key, key_len);
    CHECK(strcmp(seen, "bde"), 0);
    tw_kv_iter_close(walk);
    CHECK(tw_kv_scan(table, "b", 1, NULL, 0) == NULL, 1);
    CHECK(tw_errno(), EINVAL);
    walk = tw_kv_scan(table, NULL, 0, NULL, 0);
    CHECK(tw_kv_next(walk, &key, &key_len, &value, &value_len), 1);
    CHECK(tw_kv_next(walk, &key, &key_len, &value, &value_len), 0);
    CHECK(tw_kv_next(walk, NULL, &key_len, &value, &value_len), -EINVAL);
    tw_kv_iter_close(walk);
    static char large[2 << 20];
    size_t len = 0;
    CHECK(tw_kv_get(tree, "a", 1, NULL, &len), -ERANGE);
    CHECK(len, 1);
    CHECK(tw_kv_get(tree, "a", 1, NULL, NULL), -EINVAL);
    CHECK(tw_kv_put(tree, large, sizeof large, "v", 1), -ENAMETOOLONG);
    CHECK(tw_kv_put(tree, "k", 1, large, sizeof large), -EFBIG);
    CHECK(tw_kv_put(tree, NULL, 1, "v", 1), -EINVAL);
    CHECK(tw_kv_put(NULL, "k", 1, "v", 1), -EINVAL);
    where = "an inner abort dooms stores, too";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_abort_tx(volume), 0);
    CHECK(tw_kv_put(tree, "k", 1, "v", 1), -ECANCELED);
    CHECK(kv_get(tree, "k"), -ECANCELED);
    CHECK(tw_raw_write(raw, 0, 1, large), -ECANCELED);
    CHECK(tw_end_tx(volume), 0);
    tw_raw_close(raw);
    tw_kv_close(tree);
    tw_kv_close(table);
}

/* The server aborts a transaction that is idle for a second; see the test that starts it. */
static void preempted(void)
{
    tw_handle handle;
    where = "aborted from outside";
    for (int nested = 0; nested < 2; nested++) {
        CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        if (nested)
            CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        put(60, 1);
        CHECK(get(60), 1);
        sleep(3);
        unsigned char content[TW_BLOCK_SIZE];
        CHECK(tw_read(volume, 60, 1, content), -ECANCELED);
        all_fail(-ECANCELED);
        if (nested)
            CHECK(tw_end_tx(volume), 0);
        all_fail(-ECANCELED);
        CHECK(nested ? tw_abort_tx(volume) : tw_end_tx(volume), 0);
        CHECK(get(60), 0);
    }
    where = "aborted before its end, or its release";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    put(60, 1);
    sleep(3);
    CHECK(tw_end_tx(volume), 0);
    CHECK(tw_errno(), ECANCELED);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(get(60), 0);
    sleep(3);
    CHECK(tw_release_tx(volume, &handle), -ECANCELED);
    CHECK(tw_abort_tx(volume), 0);
    CHECK(tw_abort_tx(volume), -ESRCH);
}

static void print_handle(const tw_handle *handle)
{
    for (int at = 0; at < 16; at++)
        printf("%02x", handle->bytes[at]);
    printf("\n");
}

static void parse_handle(const char *text, tw_handle *handle)
{
    for (int at = 0; at < 16; at++) {
        unsigned byte;
        CHECK(sscanf(text + 2 * at, "%2x", &byte), 1);
        handle->bytes[at] = (unsigned char)byte;
    }
}

/* Waits to be killed, or to be told to go on. */
static void pause_here(void)
{
    fflush(stdout);
    if (getchar() == EOF)
        exit(0);
}

/* Goes through the steps of a transaction that changes blocks 0 to 7 from `byte` - 1 to `byte`, and stops
 * after the step that is named. */
static void steps(const char *last, int byte)
{
    static const char *names[] = {"open", "begin", "read", "write", "mark", "release", "takeover"};
    unsigned char content[8 * TW_BLOCK_SIZE];
    tw_handle handle = {{0}};
    for (int at = 0; at < 7; at++) {
        switch (at) {
        case 1: CHECK(tw_begin_tx(volume, TW_STRICT), 0); break;
        case 2: CHECK(tw_read(volume, 0, 8, content), 0); break;
        case 3:
            memset(content, byte, sizeof content);
            CHECK(tw_write(volume, 0, 8, content), 0);
            break;
        case 4: CHECK(tw_mark_accessed(volume, 0, 0, TW_BLOCK_SIZE), 0); break;
        case 5: CHECK(tw_release_tx(volume, &handle), 0); break;
        case 6: CHECK(tw_takeover_tx(volume, &handle), 0); break;
        }
        if (strcmp(names[at], last) == 0) {
            if (at == 5)
                print_handle(&handle);
            else
                printf("%s\n", last);
            pause_here();
        }
    }
    /* "commit": the client or its server is killed in the middle of many commits. */
    printf("commit\n");
    fflush(stdout);
    int committed = tw_end_tx(volume);
    for (int next = byte + 1; committed == 1; next++) {
        printf("%d\n", next - 1);
        fflush(stdout);
        memset(content, next, sizeof content);
        CHECK(tw_begin_tx(volume, TW_STRICT), 0);
        CHECK(tw_write(volume, 0, 8, content), 0);
        committed = tw_end_tx(volume);
    }
    printf("end %d\n", committed);
}

static void take(const char *text, int byte)
{
    tw_handle handle;
    parse_handle(text, &handle);
    where = "in another process";
    CHECK(tw_takeover_tx(volume, &handle), 0);
    CHECK(get(0), byte);
    put(8, byte);
    CHECK(tw_end_tx(volume), 1);
}

int main(int count, char **args)
{
    if (count < 3)
        return 2;
    where = args[1];
    if (strcmp(args[1], "files") == 0) {
        files(args[2], count > 3 ? args[3] : NULL, count > 4 ? args[4] : NULL);
        return 0;
    }
    if (strcmp(args[1], "forks with files") == 0) {
        forks_with_files(args[2], count > 3 ? args[3] : NULL, count > 4 ? args[4] : NULL);
        return 0;
    }
    volume = tw_open(args[2]);
    if (volume == NULL) {
        fprintf(stderr, "%s: %s\n", args[2], tw_error());
        return 3;
    }
    if (strcmp(args[1], "calls") == 0) {
        CHECK(tw_is_served(volume), atoi(args[3]));
        singletons();
        transactions();
        versions();
        marks();
        nesting();
        handing_over();
        bad_input();
        CHECK(tw_close(volume), 0);
        /* Partitions need an empty volume. */
        volume = tw_open(args[4]);
        CHECK(volume != NULL, 1);
        stores();
        raw_blocks();
    } else if (strcmp(args[1], "stale") == 0) {
        CHECK(tw_is_served(volume), atoi(args[3]));
        stale_blocks();
        other_way();
        CHECK(tw_close(volume), 0);
        volume = tw_open(args[4]);
        CHECK(volume != NULL, 1);
        stale_keys();
    } else if (strcmp(args[1], "forks") == 0) {
        CHECK(tw_is_served(volume), atoi(args[3]));
        forks(args[2], atoi(args[3]), args[4]);
    } else if (strcmp(args[1], "orphan") == 0) {
        orphan();
    } else if (strcmp(args[1], "replica") == 0) {
        on_a_replica();
    } else if (strcmp(args[1], "preempted") == 0) {
        preempted();
    } else if (strcmp(args[1], "steps") == 0) {
        steps(args[3], atoi(args[4]));
        return 0;
    } else if (strcmp(args[1], "take") == 0) {
        take(args[3], atoi(args[4]));
    } else {
        return 2;
    }
    where = "close";
    CHECK(tw_close(volume), 0);
    return 0;
}
