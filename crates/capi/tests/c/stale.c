/* Sessions and old versions, on a volume that keeps them. */

#include <stdatomic.h>

#include "check.h"

static tw_session *new_session(const char *guarantee)
{
    tw_session *session = tw_session_new(guarantee);
    if (session == NULL)
        fprintf(stderr, "%s: %s\n", guarantee, tw_error());
    CHECK(session != NULL, 1);
    return session;
}

/* Writes a block for a session; returns the version. */
static uint64_t put_for(tw_session *session, uint64_t block, int byte)
{
    unsigned char content[TW_BLOCK_SIZE];
    uint64_t version = 0;
    memset(content, byte, sizeof content);
    CHECK(tw_write_for(volume, session, block, content, &version), 0);
    CHECK(version > 0, 1);
    return version;
}

static int get_for(tw_session *session, uint64_t block, tw_got *got)
{
    unsigned char content[TW_BLOCK_SIZE];
    CHECK(tw_read_for(volume, session, block, content, got), 0);
    CHECK(content[0], content[TW_BLOCK_SIZE - 1]);
    return content[0];
}

static void session_texts(void)
{
    static const char *guarantees[] = {"", "fresh", "bounded", "bounded=5", "strong,eventual", "at=1,strong", NULL};
    static const char *texts[] = {"", "1", "1:2:3", "1:2@", "01:2", NULL};
    where = "what is no session";
    for (int at = 0; guarantees[at] != NULL; at++) {
        CHECK(tw_session_new(guarantees[at]) == NULL, 1);
        CHECK(tw_errno(), EINVAL);
        CHECK(strlen(tw_error()) > 0, 1);
        CHECK(tw_session_resume(guarantees[at], "0:0") == NULL, 1);
    }
    CHECK(strstr(tw_error(), "`at` and `strong` exclude each other") != NULL, 1);
    for (int at = 0; texts[at] != NULL; at++) {
        CHECK(tw_session_resume("eventual", texts[at]) == NULL, 1);
        CHECK(tw_errno(), EINVAL);
    }
    CHECK(tw_session_new(NULL) == NULL, 1);
    CHECK(tw_session_resume("eventual", NULL) == NULL, 1);
    tw_session_close(NULL);
}

static void sessions(void)
{
    tw_got got;
    char text[TW_SESSION_TEXT];
    where = "a session reads its writes";
    tw_session *session = new_session("bounded=5s,read-my-writes");
    uint64_t first = put_for(session, 7, 1);
    put(7, 2);
    /* Both are in memory, so the oldest that is allowed is taken. */
    CHECK(get_for(session, 7, &got), 1);
    CHECK(got.oldest, first);
    CHECK(got.newest >= first, 1);
    CHECK(got.age_ns >= 0, 1);
    CHECK(strcmp(got.guarantee, "read-my-writes,bounded=5s"), 0);
    tw_session *strong = new_session("strong");
    CHECK(get_for(strong, 7, &got), 2);
    CHECK(got.age_ns, 0);
    CHECK(got.newest > first, 1);

    where = "a session is saved and resumed";
    uint64_t second = put_for(session, 7, 3);
    CHECK(tw_session_save(volume, session, text), 0);
    tw_session *resumed = tw_session_resume("read-my-writes", text);
    CHECK(resumed != NULL, 1);
    put(7, 4);
    CHECK(get_for(resumed, 7, &got), 3);
    CHECK(got.oldest, second);
    uint64_t version;
    CHECK(tw_discard_for(volume, resumed, 7, &version), 0);
    CHECK(get_for(resumed, 7, &got), 0);
    CHECK(got.oldest, version);

    where = "a session that is ahead of the volume";
    snprintf(text, sizeof text, "%llu:0", (unsigned long long)version + 1000);
    tw_session *ahead = tw_session_resume("monotonic-reads,writes-follow-reads", text);
    unsigned char content[TW_BLOCK_SIZE] = {0};
    CHECK(tw_read_for(volume, ahead, 7, content, &got), -ENODATA);
    CHECK(strstr(tw_error(), "does not have yet") != NULL, 1);
    CHECK(tw_write_for(volume, ahead, 7, content, &version), -ENODATA);

    where = "calls for sessions are refused inside of a transaction";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_read_for(volume, session, 7, content, &got), -EINVAL);
    CHECK(tw_write_for(volume, session, 7, content, &version), -EINVAL);
    CHECK(tw_abort_tx(volume), 0);

    where = "bad input for sessions";
    CHECK(tw_read_for(NULL, session, 7, content, &got), -EINVAL);
    CHECK(tw_read_for(volume, NULL, 7, content, &got), -EINVAL);
    CHECK(tw_read_for(volume, session, 7, NULL, &got), -EINVAL);
    CHECK(tw_read_for(volume, session, 7, content, NULL), -EINVAL);
    CHECK(tw_read_for(volume, session, UINT64_MAX, content, &got), -EINVAL);
    CHECK(tw_write_for(volume, session, 7, NULL, &version), -EINVAL);
    CHECK(tw_write_for(volume, session, 7, content, NULL), -EINVAL);
    CHECK(tw_write_for(volume, session, tw_blocks(volume), content, &version), -EINVAL);
    CHECK(tw_session_save(volume, session, NULL), -EINVAL);
    CHECK(tw_session_save(volume, NULL, text), -EINVAL);
    tw_session_close(ahead);
    tw_session_close(resumed);
    tw_session_close(strong);
    tw_session_close(session);
}

struct shared {
    tw_session *session;
    atomic_int is_over;
};

static void write_until_it_is_over(void *with)
{
    struct shared *shared = with;
    unsigned char content[TW_BLOCK_SIZE] = {0};
    uint64_t version;
    while (!atomic_load(&shared->is_over)) {
        int done = tw_write_for(volume, shared->session, 9, content, &version);
        CHECK(done == 0 || done == -EBUSY, 1);
    }
}

static void *run_writer(void *with)
{
    write_until_it_is_over(with);
    return NULL;
}

static void two_threads(void)
{
    where = "a session that two threads use";
    struct shared shared = {new_session("read-my-writes"), 0};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_writer, &shared), 0);
    unsigned char content[TW_BLOCK_SIZE];
    tw_got got;
    int done;
    do {
        done = tw_read_for(volume, shared.session, 9, content, &got);
        CHECK(done == 0 || done == -EBUSY, 1);
    } while (done == 0);
    CHECK(tw_errno(), EBUSY);
    CHECK(strstr(tw_error(), "another thread") != NULL, 1);
    atomic_store(&shared.is_over, 1);
    CHECK(pthread_join(thread, NULL), 0);
    CHECK(tw_read_for(volume, shared.session, 9, content, &got), 0);
    tw_session_close(shared.session);
}

static void see_the_newest(void *block)
{
    CHECK(get(*(uint64_t *)block), 6);
}

static void snapshots(void)
{
    unsigned char content[TW_BLOCK_SIZE] = {0};
    uint64_t block = 20;
    where = "a snapshot";
    tw_session *session = new_session("eventual");
    uint64_t old = put_for(session, block, 5);
    uint64_t newest = put_for(session, block, 6);
    CHECK(tw_close_snapshot(volume), -EINVAL);
    CHECK(tw_open_snapshot(volume, old), 0);
    CHECK(get(block), 5);
    tw_version own;
    CHECK(tw_tx_version(volume, &own), 0);
    CHECK(own.version, old);
    elsewhere(see_the_newest, &block);
    CHECK(tw_write(volume, block, 1, content), -EINVAL);
    CHECK(tw_discard(volume, block, 1), -EINVAL);
    CHECK(tw_open_snapshot(volume, newest), -EINVAL);
    CHECK(tw_read_at(volume, newest, block, 1, content), -EINVAL);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_close_snapshot(volume), -EINVAL);
    CHECK(strstr(tw_error(), "inside of the snapshot") != NULL, 1);
    CHECK(tw_end_tx(volume), 1);
    CHECK(get(block), 5);
    CHECK(tw_close_snapshot(volume), 0);
    where = "a snapshot that is closed twice";
    CHECK(tw_close_snapshot(volume), -EINVAL);
    CHECK(strstr(tw_error(), "no snapshot is open") != NULL, 1);
    CHECK(get(block), 6);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(tw_close_snapshot(volume), -EINVAL);
    CHECK(tw_abort_tx(volume), 0);

    where = "reads at a version";
    CHECK(tw_read_at(volume, old, block, 1, content), 0);
    CHECK(content[0], 5);
    CHECK(tw_read_at(volume, newest, block, 1, content), 0);
    CHECK(content[0], 6);
    tw_range range;
    CHECK(tw_version_range(volume, block, old, &range), 0);
    CHECK(range.oldest, old);
    CHECK(range.newest, newest - 1);
    int64_t cost = 0;
    CHECK(tw_cost(volume, block, old, &cost), 0);
    CHECK(cost, -1);
    tw_content contents[4];
    size_t count = 1;
    CHECK(tw_contents(volume, block, old, UINT64_MAX, contents, &count), -ERANGE);
    CHECK(count, 2);
    count = 4;
    CHECK(tw_contents(volume, block, old, UINT64_MAX, contents, &count), 0);
    CHECK(count, 2);
    CHECK(contents[0].versions.newest, newest - 1);
    CHECK(contents[1].versions.oldest, newest);
    CHECK(contents[1].cost, -1);

    where = "versions of the future, and those that are gone";
    uint64_t future = newest + 1000;
    CHECK(tw_open_snapshot(volume, future), -ENODATA);
    CHECK(tw_read_at(volume, future, block, 1, content), -ENODATA);
    CHECK(tw_cost(volume, block, future, &cost), -ENODATA);
    CHECK(tw_version_range(volume, block, future, &range), -ENODATA);
    CHECK(tw_open_snapshot(volume, 0), -ESTALE);
    CHECK(tw_read_at(volume, 0, block, 1, content), -ESTALE);
    CHECK(tw_cost(volume, block, 0, &cost), -ESTALE);
    CHECK(tw_version_range(volume, block, 0, &range), -ESTALE);
    CHECK(get(block), 6);

    where = "bad input for versions";
    CHECK(tw_open_snapshot(NULL, old), -EINVAL);
    CHECK(tw_close_snapshot(NULL), -EINVAL);
    CHECK(tw_read_at(volume, old, UINT64_MAX, 1, content), -EINVAL);
    CHECK(tw_read_at(volume, old, block, 1, NULL), -EINVAL);
    CHECK(tw_cost(volume, block, old, NULL), -EINVAL);
    CHECK(tw_cost(volume, UINT64_MAX, old, &cost), -EINVAL);
    CHECK(tw_version_range(volume, block, old, NULL), -EINVAL);
    CHECK(tw_contents(volume, block, 0, UINT64_MAX, NULL, &count), -EINVAL);
    CHECK(tw_contents(volume, block, 0, UINT64_MAX, contents, NULL), -EINVAL);
    tw_session_close(session);
}

void stale_blocks(void)
{
    session_texts();
    sessions();
    two_threads();
    snapshots();
}

/* The volume has a history: a session that has seen another one is refused. */
void other_way(void)
{
    char text[TW_SESSION_TEXT];
    unsigned char content[TW_BLOCK_SIZE] = {0};
    tw_got got;
    uint64_t version;
    where = "a session that has seen another history";
    tw_session *session = new_session("read-my-writes");
    put_for(session, 30, 1);
    CHECK(tw_session_save(volume, session, text), 0);
    tw_session_close(session);
    char *timeline = strchr(text, '@');
    CHECK(timeline != NULL, 1);
    timeline = strchr(timeline, ':') + 1;
    *timeline = *timeline == '0' ? '1' : '0';
    session = tw_session_resume("read-my-writes", text);
    CHECK(session != NULL, 1);
    CHECK(tw_read_for(volume, session, 30, content, &got), -EREMCHG);
    CHECK(strstr(tw_error(), "begin a new session") != NULL, 1);
    CHECK(tw_write_for(volume, session, 30, content, &version), -EREMCHG);
    tw_session_close(session);
}

static int kv_get_for(tw_kv *kv, tw_session *session, const char *key, tw_got *got)
{
    char value[8];
    size_t len = sizeof value;
    int found = tw_kv_get_for(kv, session, key, strlen(key), value, &len, got);
    return found == 1 ? value[0] : found;
}

static int kv_get_at(tw_kv *kv, uint64_t version, const char *key)
{
    char value[8];
    size_t len = sizeof value;
    int found = tw_kv_get_at(kv, version, key, strlen(key), value, &len);
    return found == 1 ? value[0] : found;
}

static void keys(tw_kv *kv)
{
    tw_got got;
    tw_range range;
    int64_t cost = 0;
    uint64_t first, version;
    size_t len = 0;
    where = "keys for a session";
    tw_session *session = new_session("read-my-writes,monotonic-reads");
    CHECK(kv_get_for(kv, session, "k", &got), 0);
    CHECK(tw_kv_put_for(kv, session, "k", 1, "a", 1, &first), 0);
    CHECK(tw_kv_put(kv, "k", 1, "b", 1), 0);
    CHECK(kv_get_for(kv, session, "k", &got), 'a');
    CHECK(got.oldest, first);
    CHECK(strcmp(got.guarantee, "read-my-writes,monotonic-reads"), 0);
    CHECK(kv_get_at(kv, first, "k"), 'a');
    CHECK(tw_kv_version_range(kv, "k", 1, first, &range), 0);
    CHECK(range.oldest, first);
    CHECK(range.newest, first);
    CHECK(tw_kv_cost(kv, "k", 1, first, &cost), 0);
    CHECK(cost, -1);
    CHECK(tw_open_snapshot(volume, first), 0);
    char value;
    len = 1;
    CHECK(tw_kv_get(kv, "k", 1, &value, &len), 1);
    CHECK(value, 'a');
    CHECK(tw_kv_put(kv, "k", 1, "c", 1), -EINVAL);
    CHECK(tw_close_snapshot(volume), 0);
    len = 1;
    CHECK(tw_kv_get(kv, "k", 1, &value, &len), 1);
    CHECK(value, 'b');

    where = "bad input for keys";
    len = 0;
    CHECK(tw_kv_get_for(kv, session, "k", 1, NULL, &len, &got), -ERANGE);
    CHECK(len, 1);
    CHECK(tw_kv_get_for(kv, session, "k", 1, &value, &len, NULL), -EINVAL);
    CHECK(tw_kv_get_for(kv, NULL, "k", 1, &value, &len, &got), -EINVAL);
    CHECK(tw_kv_get_for(NULL, session, "k", 1, &value, &len, &got), -EINVAL);
    CHECK(tw_kv_put_for(kv, session, "k", 1, NULL, 1, &version), -EINVAL);
    CHECK(tw_kv_put_for(kv, session, "k", 1, "v", 1, NULL), -EINVAL);
    CHECK(kv_get_at(kv, first + 1000, "k"), -ENODATA);
    CHECK(kv_get_at(kv, 0, "k"), -ESTALE);
    CHECK(tw_kv_cost(kv, "k", 1, first + 1000, &cost), -ENODATA);
    CHECK(tw_kv_version_range(kv, "k", 1, 0, &range), -ESTALE);
    tw_session_close(session);
}

static void raw_partitions(void)
{
    unsigned char content[TW_BLOCK_SIZE];
    tw_got got;
    uint64_t first, place, version;
    where = "a raw partition for a session";
    CHECK(tw_raw_create(volume, "blocks", 8), 0);
    tw_raw *raw = tw_raw_open(volume, "blocks");
    tw_session *session = new_session("read-my-writes");
    memset(content, 1, sizeof content);
    CHECK(tw_raw_write_for(raw, session, 3, content, &first), 0);
    memset(content, 2, sizeof content);
    CHECK(tw_raw_write(raw, 3, 1, content), 0);
    CHECK(tw_raw_read_for(raw, session, 3, content, &got), 0);
    CHECK(content[0], 1);
    CHECK(got.oldest, first);
    CHECK(tw_raw_read_at(raw, first, 3, 1, content), 0);
    CHECK(content[0], 1);
    CHECK(tw_raw_place(raw, 3, &place), 0);
    tw_range range;
    CHECK(tw_version_range(volume, place, first, &range), 0);
    CHECK(range.oldest, first);
    CHECK(tw_raw_discard_for(raw, session, 3, &version), 0);
    CHECK(tw_raw_read_for(raw, session, 3, content, &got), 0);
    CHECK(content[0], 0);

    where = "raw blocks of a volume with partitions";
    CHECK(tw_write_for(volume, session, place, content, &version), -EINVAL);
    CHECK(strstr(tw_error(), "partition blocks") != NULL, 1);
    CHECK(tw_discard_for(volume, session, 0, &version), -EINVAL);
    CHECK(tw_raw_place(raw, 8, &place), -EINVAL);
    CHECK(tw_raw_place(raw, 3, NULL), -EINVAL);
    CHECK(tw_raw_read_for(raw, session, 8, content, &got), -EINVAL);
    CHECK(tw_raw_write_for(raw, session, 8, content, &version), -EINVAL);
    CHECK(tw_raw_read_for(NULL, session, 3, content, &got), -EINVAL);
    CHECK(tw_raw_read_at(raw, first + 1000, 3, 1, content), -ENODATA);
    /* This state has no partitions yet. */
    CHECK(tw_raw_read_at(raw, 1, 3, 1, content) < 0, 1);
    tw_session_close(session);
    tw_raw_close(raw);
}

void stale_keys(void)
{
    static const struct { const char *name; int kind; } kinds[] = {{"tree", TW_KV_BTREE}, {"table", TW_KV_HASH}};
    for (int at = 0; at < 2; at++) {
        CHECK(tw_kv_create(volume, kinds[at].name, kinds[at].kind, 128), 0);
        tw_kv *kv = tw_kv_open(volume, kinds[at].name);
        CHECK(kv != NULL, 1);
        keys(kv);
        tw_kv_close(kv);
    }
    raw_partitions();
}

/* A replica that has not heard of its primary. */
void on_a_replica(void)
{
    unsigned char content[TW_BLOCK_SIZE];
    tw_got got;
    where = "what only the primary can give";
    tw_session *session = new_session("strong");
    CHECK(tw_read_for(volume, session, 0, content, &got), -EREMOTE);
    tw_session_close(session);
    session = new_session("updates=3");
    CHECK(tw_read_for(volume, session, 0, content, &got), -EREMOTE);
    tw_session_close(session);
    where = "a replica that may be too old";
    session = new_session("bounded=1s");
    CHECK(tw_read_for(volume, session, 0, content, &got), -ETIME);
    tw_session_close(session);
    where = "what a replica can give";
    session = new_session("eventual");
    CHECK(tw_read_for(volume, session, 0, content, &got), 0);
    CHECK(content[0], 0);
    CHECK(got.age_ns, -1);
    tw_session_close(session);
}
