/* Children of fork(2): they can use nothing that their parent has open, and disturb nothing of it. */

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Longer than any call takes that does not hang, in seconds. */
#define PATIENCE 30

static const char *place;
static int served;
static tw_kv *names;
static tw_kv_iter *walk;
static tw_raw *raw;
static tw_session *session;
static tw_fs *fs;
static tw_file *file;
static tw_dir *dir;

/* A call that a child is refused. */
#define REFUSED(call) CHECK(call, -EBADFD)
#define REFUSED_POINTER(call)                                                                        \
    do {                                                                                             \
        CHECK((call) == NULL, 1);                                                                    \
        CHECK(tw_errno(), EBADFD);                                                                   \
    } while (0)

/* Runs calls in a child, which then ends in one way or the other. */
static void in_child(void (*run)(void), void (*end)(int))
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0, 1);
    if (pid == 0) {
        alarm(PATIENCE);
        run();
        end(0);
    }
    CHECK(waitpid(pid, &status, 0), pid);
    CHECK(status, 0);
}

static void in_children(void (*run)(void))
{
    in_child(run, _exit);
    in_child(run, exit);
}

static void nothing(void)
{
}

static void use_blocks(void)
{
    unsigned char content[TW_BLOCK_SIZE] = "child";
    char text[TW_POSITION_TEXT];
    tw_handle handle;
    tw_version version;
    REFUSED(tw_read(volume, 1, 1, content));
    REFUSED(tw_write(volume, 1, 1, content));
    REFUSED(tw_discard(volume, 1, 1));
    REFUSED(tw_mark_accessed(volume, 1, 0, 1));
    REFUSED(tw_please_cache(volume, 1));
    REFUSED(tw_begin_tx(volume, TW_STRICT));
    REFUSED(tw_end_tx(volume));
    REFUSED(tw_abort_tx(volume));
    REFUSED(tw_release_tx(volume, &handle));
    memset(&handle, 0, sizeof handle);
    REFUSED(tw_takeover_tx(volume, &handle));
    REFUSED(tw_tx_version(volume, &version));
    REFUSED(tw_read_with_version(volume, 1, 1, content, &version));
    REFUSED(tw_read_at(volume, 1, 1, 1, content));
    REFUSED(tw_position(volume, text));
    CHECK(tw_blocks(volume), 0);
    CHECK(strstr(tw_error(), "forked this process") != NULL, 1);
}

static void use_blocks_and_close(void)
{
    use_blocks();
    CHECK(tw_close(volume), 0);
}

static void use_blocks_in_a_grandchild(void)
{
    in_children(use_blocks);
    use_blocks();
}

/* A child may open the volume itself, where a server has it. */
static void open_anew(void)
{
    unsigned char content[TW_BLOCK_SIZE];
    tw_volume *own = tw_open(place);
    if (!served) {
        CHECK(own == NULL, 1);
        CHECK(tw_errno(), EBUSY);
        return;
    }
    CHECK(own != NULL, 1);
    CHECK(tw_read(own, 1, 1, content), 0);
    CHECK(content[0], 5);
    memset(content, 8, sizeof content);
    CHECK(tw_begin_tx(own, TW_STRICT), 0);
    CHECK(tw_write(own, 8, 1, content), 0);
    CHECK(tw_end_tx(own), 1);
    /* Its parent's is a parent's all the same. */
    use_blocks();
    CHECK(tw_close(own), 0);
}

static void in_a_transaction(void)
{
    where = "a child in the middle of a transaction";
    put(1, 5);
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    CHECK(get(1), 5);
    put(2, 6);
    in_children(nothing);
    in_children(use_blocks);
    in_children(use_blocks_and_close);
    in_children(use_blocks_in_a_grandchild);
    in_children(open_anew);
    put(3, 7);
    CHECK(get(2), 6);
    CHECK(tw_end_tx(volume), 1);
    CHECK(get(2), 6);
    CHECK(get(3), 7);
    if (served)
        CHECK(get(8), 8);
}

static volatile int stop;

static void *writes(void *at)
{
    unsigned char content[TW_BLOCK_SIZE];
    memset(content, 3, sizeof content);
    while (!stop)
        CHECK(tw_write(volume, *(uint64_t *)at, 1, content), 0);
    return NULL;
}

static void use_blocks_and_open_anew(void)
{
    use_blocks();
    open_anew();
}

/* Each is forked while other threads are in the middle of calls, with their locks. */
static void beside_threads(void)
{
    pthread_t threads[3];
    uint64_t at[3] = {20, 30, 40};
    where = "children beside threads";
    for (int thread = 0; thread < 3; thread++)
        CHECK(pthread_create(&threads[thread], NULL, writes, &at[thread]), 0);
    /* A volume that is not served is waited for, seconds at a time. */
    for (int turn = 0; turn < 20; turn++)
        in_child(served || turn < 2 ? use_blocks_and_open_anew : use_blocks, turn % 2 ? exit : _exit);
    stop = 1;
    for (int thread = 0; thread < 3; thread++)
        CHECK(pthread_join(threads[thread], NULL), 0);
    CHECK(get(30), 3);
}

static void use_stores(void)
{
    char value[8];
    unsigned char content[TW_BLOCK_SIZE] = "child";
    const void *key, *found;
    size_t len = sizeof value, key_len, found_len;
    tw_got got;
    REFUSED(tw_kv_get(names, "a", 1, value, &len));
    REFUSED(tw_kv_put(names, "a", 1, "9", 1));
    REFUSED(tw_kv_delete(names, "a", 1));
    REFUSED(tw_kv_next(walk, &key, &key_len, &found, &found_len));
    REFUSED_POINTER(tw_kv_scan(names, NULL, 0, NULL, 0));
    REFUSED_POINTER(tw_kv_open(volume, "names"));
    REFUSED(tw_kv_create(volume, "more", TW_KV_HASH, 8));
    REFUSED(tw_raw_read(raw, 0, 1, content));
    REFUSED(tw_raw_write(raw, 0, 1, content));
    REFUSED(tw_raw_read_for(raw, session, 0, content, &got));
    REFUSED_POINTER(tw_raw_open(volume, "blocks"));
}

static void use_stores_and_close(void)
{
    use_stores();
    tw_kv_iter_close(walk);
    tw_kv_close(names);
    tw_raw_close(raw);
    CHECK(tw_close(volume), 0);
}

static void next_is(const char *wanted)
{
    const void *key, *value;
    size_t key_len, value_len;
    CHECK(tw_kv_next(walk, &key, &key_len, &value, &value_len), 1);
    CHECK(key_len, 1);
    CHECK(*(const char *)key, *wanted);
}

static void with_stores(void)
{
    where = "children and stores";
    CHECK(tw_kv_create(volume, "names", TW_KV_BTREE, 64), 0);
    CHECK(tw_raw_create(volume, "blocks", 8), 0);
    names = tw_kv_open(volume, "names");
    raw = tw_raw_open(volume, "blocks");
    session = tw_session_new("read-my-writes");
    CHECK(names != NULL && raw != NULL && session != NULL, 1);
    CHECK(tw_kv_put(names, "a", 1, "1", 1), 0);
    CHECK(tw_kv_put(names, "b", 1, "2", 1), 0);
    walk = tw_kv_scan(names, NULL, 0, NULL, 0);
    CHECK(walk != NULL, 1);
    next_is("a");
    in_children(nothing);
    in_children(use_stores);
    in_children(use_stores_and_close);
    next_is("b");
    CHECK(tw_kv_put(names, "c", 1, "3", 1), 0);
    tw_kv_iter_close(walk);
    tw_kv_close(names);
    tw_raw_close(raw);
    tw_session_close(session);
}

void forks(const char *at, int is_served, const char *empty)
{
    place = at;
    served = is_served;
    in_a_transaction();
    beside_threads();
    CHECK(tw_close(volume), 0);
    volume = tw_open(empty);
    CHECK(volume != NULL, 1);
    with_stores();
}

/* Opens a volume, and leaves a child that lives until it is killed. */
void orphan(void)
{
    where = "an orphan";
    CHECK(tw_begin_tx(volume, TW_STRICT), 0);
    put(1, 9);
    pid_t pid = fork();
    CHECK(pid >= 0, 1);
    if (pid == 0) {
        close(0);
        close(1);
        for (;;)
            pause();
    }
    printf("%d\n", (int)pid);
    fflush(stdout);
    for (;;)
        pause();
}

static void use_files(void)
{
    char text[8];
    tw_stat stat;
    tw_statfs statfs;
    tw_entry entry;
    REFUSED(tw_fs_stat(fs, "/a", &stat));
    REFUSED(tw_fs_statfs(fs, &statfs));
    REFUSED(tw_fs_mkdir(fs, "/b", 0777));
    REFUSED(tw_fs_unlink(fs, "/a"));
    REFUSED(tw_fs_rename(fs, "/a", "/c"));
    REFUSED(tw_fs_sync(fs));
    REFUSED_POINTER(tw_file_open(fs, "/a", O_RDONLY, 0));
    REFUSED_POINTER(tw_fs_opendir(fs, "/"));
    REFUSED(tw_file_read(file, text, 1));
    REFUSED(tw_file_pread(file, text, 1, 0));
    REFUSED(tw_file_write(file, "x", 1));
    REFUSED(tw_file_pwrite(file, "x", 1, 0));
    REFUSED(tw_file_append(file, "x", 1));
    REFUSED(tw_file_lseek(file, 0, SEEK_SET));
    REFUSED(tw_file_stat(file, &stat));
    REFUSED(tw_file_truncate(file, 0));
    REFUSED(tw_file_fsync(file));
    REFUSED(tw_file_flock(file, LOCK_UN));
    REFUSED(tw_dir_read(dir, &entry));
}

static void use_files_and_close(void)
{
    use_files();
    CHECK(tw_file_close(file), 0);
    tw_dir_close(dir);
    CHECK(tw_fs_close(fs), 0);
}

static void *appends(void *other)
{
    while (!stop)
        CHECK(tw_file_append(other, "x", 1) >= 0, 1);
    return NULL;
}

void forks_with_files(const char *at, const char *token, const char *keys)
{
    tw_fs_options options = {.token = token, .keys = keys};
    tw_entry entry;
    tw_stat stat;
    where = "children and files";
    fs = tw_fs_open(at, &options);
    CHECK(fs != NULL, 1);
    file = tw_file_open(fs, "/a", O_RDWR | O_CREAT, 0666);
    tw_file *other = tw_file_open(fs, "/a", O_RDWR | O_CREAT, 0666);
    dir = tw_fs_opendir(fs, "/");
    CHECK(file != NULL && other != NULL && dir != NULL, 1);
    CHECK(tw_file_write(file, "parent", 6), 6);
    CHECK(tw_file_flock(file, LOCK_EX), 0);
    in_children(nothing);
    in_children(use_files);
    in_children(use_files_and_close);
    /* The file is open, and locked. */
    CHECK(tw_file_flock(other, LOCK_EX | LOCK_NB), -EWOULDBLOCK);
    CHECK(tw_file_write(file, "'s", 2), 2);
    CHECK(tw_file_flock(file, LOCK_UN), 0);
    CHECK(tw_file_flock(other, LOCK_EX | LOCK_NB), 0);
    CHECK(tw_dir_read(dir, &entry), 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, appends, other), 0);
    for (int turn = 0; turn < 20; turn++)
        in_child(use_files_and_close, turn % 2 ? exit : _exit);
    stop = 1;
    CHECK(pthread_join(thread, NULL), 0);
    CHECK(tw_file_stat(file, &stat), 0);
    CHECK(stat.size >= 8, 1);
    tw_dir_close(dir);
    CHECK(tw_file_close(other), 0);
    CHECK(tw_file_close(file), 0);
    CHECK(tw_fs_close(fs), 0);
}
