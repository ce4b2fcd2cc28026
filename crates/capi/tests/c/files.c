/* All calls on files, on an empty filesystem: of a volume, or of a server. */

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static tw_fs *fs;

/* A call that returns a null pointer and this errno. */
#define REFUSED(call, number)                                                                        \
    do {                                                                                             \
        CHECK((call) == NULL, 1);                                                                    \
        CHECK(tw_errno(), number);                                                                   \
    } while (0)

static tw_file *opened(const char *path, int flags)
{
    tw_file *file = tw_file_open(fs, path, flags, 0666);
    if (file == NULL) {
        fprintf(stderr, "%s: %s: %s\n", where, path, tw_error());
        exit(1);
    }
    return file;
}

static void contents(void)
{
    char text[64] = "";
    where = "contents";
    tw_file *file = opened("/a", O_RDWR | O_CREAT | O_EXCL);
    REFUSED(tw_file_open(fs, "/a", O_RDWR | O_CREAT | O_EXCL, 0666), EEXIST);
    CHECK(tw_file_pwrite(file, "hello world", 11, 0), 11);
    CHECK(tw_file_pread(file, text, sizeof(text), 6), 5);
    CHECK(memcmp(text, "world", 5), 0);
    CHECK(tw_file_pread(file, text, sizeof(text), 11), 0);
    CHECK(tw_file_pread(file, text, 1, -1), -EINVAL);
    CHECK(tw_file_write(file, "HE", 2), 2);
    CHECK(tw_file_read(file, text, 3), 3);
    CHECK(memcmp(text, "llo", 3), 0);
    CHECK(tw_file_lseek(file, 0, SEEK_CUR), 5);
    CHECK(tw_file_lseek(file, -1, SEEK_END), 10);
    CHECK(tw_file_lseek(file, -11, SEEK_CUR), -EINVAL);
    CHECK(tw_file_lseek(file, 0, 99), -EINVAL);
    CHECK(tw_file_append(file, "!", 1), 11);
    CHECK(tw_file_lseek(file, 0, SEEK_CUR), 10);
    CHECK(tw_file_truncate(file, 5), 0);
    CHECK(tw_file_fallocate(file, 0, 0, 20000), 0);
    CHECK(tw_file_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
    CHECK(tw_file_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
    CHECK(tw_file_fallocate(file, 0, 0, 0), -EINVAL);
    CHECK(tw_file_lseek(file, 0, SEEK_HOLE) >= 4096, 1);
    CHECK(tw_file_lseek(file, 30000, SEEK_DATA), -ENXIO);
    CHECK(tw_file_fdatasync(file), 0);
    CHECK(tw_file_pwrite(file, "x", 1, 19999), 1);
    CHECK(tw_file_level(file), TW_LEVEL_MEMORY);
    CHECK(tw_file_wait_for(file, TW_LEVEL_MEMORY, 0), 1);
    CHECK(tw_file_level(file), TW_LEVEL_MEMORY);
    /* Without a client's journal the server's level is the next one. */
    CHECK(tw_file_wait_for(file, TW_LEVEL_JOURNAL, 0), 1);
    CHECK(tw_file_level(file), TW_LEVEL_SERVER);
    CHECK(tw_file_wait_for(file, TW_LEVEL_SERVER, 0), 1);
    CHECK(tw_file_level(file), TW_LEVEL_SERVER);
    CHECK(tw_file_wait_for(file, TW_LEVEL_REPLICAS, -1), -ENODATA);
    CHECK(tw_file_wait_for(file, 4, 0), -EINVAL);
    CHECK(tw_file_wait_for(file, -1, 0), -EINVAL);
    CHECK(tw_file_fsync(file), 0);
    tw_stat stat;
    CHECK(tw_file_stat(file, &stat), 0);
    CHECK(stat.size, 20000);
    CHECK(stat.mode, S_IFREG | 0644);
    CHECK(tw_file_close(file), 0);
    CHECK(tw_file_close(NULL), -EBADF);
    file = opened("a", O_WRONLY | O_APPEND | O_TRUNC);
    CHECK(tw_file_pwrite(file, "one", 3, 100), 3);
    CHECK(tw_file_write(file, "two", 3), 3);
    CHECK(tw_file_read(file, text, 1), -EBADF);
    CHECK(tw_file_close(file), 0);
    file = opened("a", O_RDONLY);
    CHECK(tw_file_write(file, "x", 1), -EBADF);
    CHECK(tw_file_truncate(file, 0), -EINVAL);
    CHECK(tw_file_pread(file, text, sizeof(text), 0), 6);
    CHECK(memcmp(text, "onetwo", 6), 0);
    CHECK(tw_file_pread(file, NULL, 6, 0), -EFAULT);
    CHECK(tw_file_close(file), 0);
    CHECK(tw_fs_truncate(fs, "a", 3), 0);
    CHECK(tw_fs_truncate(fs, "a", -3), -EINVAL);
    CHECK(tw_fs_truncate(fs, "/", 3), -EISDIR);
}

static void names(void)
{
    char target[64];
    where = "names";
    CHECK(tw_fs_mkdir(fs, "/d/e", 0777), -ENOENT);
    CHECK(strstr(tw_error(), "no such file") != NULL, 1);
    CHECK(tw_fs_mkdir(fs, "/d", 0777), 0);
    CHECK(tw_fs_mkdir(fs, "/d/", 0777), -EEXIST);
    CHECK(tw_fs_mkdir(fs, "/d/e/", 0777), 0);
    CHECK(tw_fs_rmdir(fs, "/d"), -ENOTEMPTY);
    CHECK(tw_fs_link(fs, "a", "d/a", 0), 0);
    CHECK(tw_fs_link(fs, "d", "d2", 0), -EPERM);
    CHECK(tw_fs_symlink(fs, "/d/a", "d/e/l"), 0);
    CHECK(tw_fs_symlink(fs, "loop", "loop"), 0);
    REFUSED(tw_file_open(fs, "loop", O_RDONLY, 0), ELOOP);
    REFUSED(tw_file_open(fs, "d/e/l", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    CHECK(tw_fs_readlink(fs, "d/e/l", target, sizeof(target)), 4);
    CHECK(memcmp(target, "/d/a", 4), 0);
    CHECK(tw_fs_readlink(fs, "d/e/l", target, 0), 4);
    CHECK(tw_fs_readlink(fs, "a", target, sizeof(target)), -EINVAL);
    tw_stat stat, other;
    CHECK(tw_fs_stat(fs, "d/e/../e/l", &stat), 0);
    CHECK(tw_fs_stat(fs, "a", &other), 0);
    CHECK(stat.ino == other.ino, 1);
    CHECK(stat.links, 2);
    CHECK(tw_fs_lstat(fs, "d/e/l", &stat), 0);
    CHECK(stat.mode, S_IFLNK | 0777);
    CHECK(tw_fs_lstat(fs, "d/e/l/", &stat), -ENOTDIR);
    CHECK(tw_fs_unlink(fs, "d"), -EISDIR);
    CHECK(tw_fs_rmdir(fs, "a"), -ENOTDIR);
    CHECK(tw_fs_rename(fs, "d", "d/e/d"), -EINVAL);
    CHECK(tw_fs_rename2(fs, "a", "d/a", TW_RENAME_NOREPLACE), -EEXIST);
    CHECK(tw_fs_rename2(fs, "a", "d/e", TW_RENAME_EXCHANGE), 0);
    CHECK(tw_fs_rename2(fs, "a", "d/e", TW_RENAME_EXCHANGE), 0);
    CHECK(tw_fs_rename2(fs, "a", "d/e", 8), -EINVAL);
    CHECK(tw_fs_rename(fs, "d/a", "d/b"), 0);
    CHECK(tw_fs_mknod(fs, "pipe", S_IFIFO | 0600, 0), 0);
    REFUSED(tw_file_open(fs, "pipe", O_RDONLY, 0), ENXIO);
    CHECK(tw_fs_unlink(fs, "pipe"), 0);
    CHECK(tw_fs_unlink(fs, "loop"), 0);
    CHECK(tw_fs_unlink(fs, NULL), -EFAULT);
    CHECK(tw_fs_unlink(fs, ""), -ENOENT);
}

static void listing(void)
{
    char name[16];
    tw_entry entry;
    int found = 0;
    where = "listing";
    CHECK(tw_fs_mkdir(fs, "many", 0700), 0);
    for (int at = 0; at < 600; at++) {
        snprintf(name, sizeof(name), "many/%03d", at);
        CHECK(tw_file_close(opened(name, O_WRONLY | O_CREAT)), 0);
    }
    REFUSED(tw_fs_opendir(fs, "a"), ENOTDIR);
    tw_dir *dir = tw_fs_opendir(fs, "many/");
    for (int twice = 0; twice < 2; twice++) {
        char seen[600] = {0};
        while (tw_dir_read(dir, &entry) == 1) {
            CHECK(entry.name_len, 3);
            CHECK(strlen(entry.name), 3);
            CHECK(entry.kind, S_IFREG);
            CHECK(seen[atoi(entry.name)]++, 0);
            found++;
        }
        CHECK(tw_dir_rewind(dir), 0);
    }
    CHECK(found, 1200);
    tw_dir_close(dir);
    tw_dir_close(NULL);
    tw_file *file = opened("many", O_RDONLY | O_DIRECTORY);
    CHECK(tw_file_read(file, name, 1), -EISDIR);
    CHECK(tw_file_fsync(file), 0);
    CHECK(tw_file_close(file), 0);
}

static void attributes(void)
{
    tw_stat stat;
    tw_statfs statfs;
    tw_time times[2] = {{7, 5}, {0, TW_OMIT}};
    where = "attributes";
    CHECK(tw_fs_chmod(fs, "a", 04640), 0);
    CHECK(tw_fs_utimens(fs, "a", times, 0), 0);
    times[1].nanos = 1000000000;
    CHECK(tw_fs_utimens(fs, "a", times, 0), -EINVAL);
    CHECK(tw_fs_stat(fs, "a", &stat), 0);
    CHECK(stat.mode, S_IFREG | 04640);
    CHECK(stat.accessed.seconds, 7);
    CHECK(stat.accessed.nanos, 5);
    CHECK(stat.modified.seconds > 1000000000, 1);
    CHECK(tw_fs_chown(fs, "d/e/l", 7, 8, TW_NOFOLLOW), 0);
    CHECK(tw_fs_chown(fs, "d/e/l", 7, 8, 0x1000), -EINVAL);
    CHECK(tw_fs_lstat(fs, "d/e/l", &stat), 0);
    CHECK(stat.uid, 7);
    CHECK(tw_fs_chown(fs, "a", (uint32_t)-1, 8, 0), 0);
    tw_file *file = opened("a", O_RDWR);
    CHECK(tw_file_stat(file, &stat), 0);
    CHECK(stat.gid, 8);
    CHECK(stat.mode, S_IFREG | 0640);
    CHECK(tw_file_chmod(file, 0600), 0);
    CHECK(tw_file_chown(file, 1000, 1000), 0);
    CHECK(tw_file_utimens(file, NULL), 0);
    CHECK(tw_file_stat(file, &stat), 0);
    CHECK(stat.uid, 1000);
    CHECK(stat.mode, S_IFREG | 0600);
    CHECK(tw_file_close(file), 0);
    CHECK(tw_fs_statfs(fs, &statfs), 0);
    CHECK(statfs.blocks > statfs.blocks_free && statfs.blocks_free > 0, 1);
    CHECK(statfs.name_max, 255);
    CHECK(statfs.read_only, 0);

    char list[64];
    where = "extended attributes";
    CHECK(tw_fs_setxattr(fs, "a", "user.one", "value", 5, TW_XATTR_REPLACE), -ENODATA);
    CHECK(tw_fs_setxattr(fs, "a", "user.one", "value", 5, TW_XATTR_CREATE), 0);
    CHECK(tw_fs_setxattr(fs, "a", "user.one", "value", 5, TW_XATTR_CREATE), -EEXIST);
    CHECK(tw_fs_getxattr(fs, "a", "user.one", NULL, 0, 0), 5);
    CHECK(tw_fs_getxattr(fs, "a", "user.one", list, 4, 0), -ERANGE);
    CHECK(tw_fs_getxattr(fs, "a", "user.one", list, 64, 0), 5);
    CHECK(memcmp(list, "value", 5), 0);
    CHECK(tw_fs_getxattr(fs, "a", "user.two", list, 64, 0), -ENODATA);
    CHECK(tw_fs_listxattr(fs, "a", list, 64, 0), 9);
    CHECK(memcmp(list, "user.one", 9), 0);
    CHECK(tw_fs_removexattr(fs, "a", "user.one", 0), 0);
    CHECK(tw_fs_listxattr(fs, "a", NULL, 0, 0), 0);
}

static void users(void)
{
    uint32_t groups[] = {50, 51};
    where = "users";
    tw_fs *root = fs, *user = tw_fs_as_user(root, 1000, 1000, groups, 2, 027);
    CHECK(user != NULL, 1);
    CHECK(tw_fs_mkdir(user, "home", 0777), -EACCES);
    CHECK(strcmp(tw_error(), "permission denied"), 0);
    CHECK(tw_fs_mkdir(root, "home", 0777), 0);
    CHECK(tw_fs_chown(root, "home", 1000, 50, 0), 0);
    fs = user;
    CHECK(tw_file_close(opened("home/f", O_WRONLY | O_CREAT)), 0);
    tw_stat stat;
    CHECK(tw_fs_stat(fs, "home/f", &stat), 0);
    CHECK(stat.mode, S_IFREG | 0640);
    CHECK(stat.uid, 1000);
    CHECK(tw_fs_chown(fs, "home/f", (uint32_t)-1, 51, 0), 0);
    CHECK(tw_fs_chown(fs, "home/f", (uint32_t)-1, 52, 0), -EPERM);
    CHECK(tw_fs_chmod(fs, "d", 0777), -EPERM);
    CHECK(tw_fs_access(fs, "d", R_OK | X_OK, 0), 0);
    CHECK(tw_fs_access(fs, "d", W_OK, 0), -EACCES);
    CHECK(tw_fs_access(fs, "none", F_OK, 0), -ENOENT);
    CHECK(tw_fs_access(fs, "d", 8, 0), -EINVAL);
    tw_fs *other = tw_fs_as_user(root, 1001, 1001, NULL, 0, 0);
    REFUSED(tw_file_open(other, "home/f", O_RDONLY, 0), EACCES);
    CHECK(tw_fs_close(other), 0);
    CHECK(tw_fs_close(user), 0);
    fs = root;
}

static void locks(void)
{
    where = "locks";
    tw_file *one = opened("a", O_RDWR), *two = opened("a", O_RDWR);
    CHECK(tw_file_flock(one, LOCK_EX), 0);
    CHECK(tw_file_flock(two, LOCK_SH | LOCK_NB), -EAGAIN);
    CHECK(tw_file_flock(one, LOCK_UN), 0);
    CHECK(tw_file_flock(two, LOCK_SH | LOCK_NB), 0);
    CHECK(tw_file_flock(two, 99), -EINVAL);
    CHECK(tw_file_close(two), 0);
    two = opened("a", O_RDWR);
    tw_lock lock = {.kind = F_WRLCK, .start = 10, .len = 10};
    CHECK(tw_file_lock(one, &lock, 1), 0);
    tw_lock test = {.kind = F_RDLCK, .start = 19, .len = 0};
    CHECK(tw_file_lock(two, &test, 0), -EAGAIN);
    CHECK(tw_file_test_lock(two, &test), 0);
    CHECK(test.kind, F_WRLCK);
    CHECK(test.start, 10);
    CHECK(test.len, 10);
    lock.kind = F_UNLCK;
    CHECK(tw_file_lock(one, &lock, 0), 0);
    test.kind = F_RDLCK;
    CHECK(tw_file_test_lock(two, &test), 0);
    CHECK(test.kind, F_UNLCK);
    CHECK(tw_file_close(one), 0);
    CHECK(tw_file_close(two), 0);
}

static void append_lines(void *unused)
{
    (void)unused;
    tw_file *file = opened("log", O_WRONLY | O_CREAT | O_APPEND);
    for (int at = 0; at < 100; at++)
        CHECK(tw_file_write(file, "line\n", 5), 5);
    CHECK(tw_file_close(file), 0);
}

void files(const char *place, const char *token, const char *keys)
{
    where = "open";
    REFUSED(tw_fs_open(NULL, NULL), EINVAL);
    REFUSED(tw_fs_open("/nowhere", NULL), ENOENT);
    tw_fs_options options = {.token = token, .keys = keys};
    fs = tw_fs_open(place, &options);
    if (fs == NULL) {
        fprintf(stderr, "%s: %s\n", place, tw_error());
        exit(3);
    }
    contents();
    names();
    listing();
    attributes();
    users();
    locks();
    where = "threads";
    elsewhere(append_lines, NULL);
    append_lines(NULL);
    tw_stat stat;
    CHECK(tw_fs_stat(fs, "log", &stat), 0);
    CHECK(stat.size, 1000);
    where = "close";
    CHECK(tw_fs_sync(fs), 0);
    CHECK(tw_fs_close(fs), 0);
    CHECK(tw_fs_close(NULL), -EINVAL);
    /* With the key that the token made known. */
    options.token = NULL;
    fs = tw_fs_open(place, &options);
    CHECK(fs != NULL, 1);
    CHECK(tw_fs_stat(fs, "log", &stat), 0);
    CHECK(stat.size, 1000);
    CHECK(tw_fs_close(fs), 0);
    if (token == NULL) {
        where = "read-only";
        options.read_only = 1;
        fs = tw_fs_open(place, &options);
        CHECK(fs != NULL, 1);
        CHECK(tw_fs_mkdir(fs, "new", 0777), -EROFS);
        CHECK(tw_fs_mkdir(fs, "d", 0777), -EEXIST);
        CHECK(tw_fs_close(fs), 0);
        options.name = "other";
        REFUSED(tw_fs_open(place, &options), ENOENT);
        /* In the words of the caller, not in those of the layout. */
        CHECK(strstr(tw_error(), "no filesystem called other") != NULL, 1);
        CHECK(strstr(tw_error(), ".meta") == NULL, 1);
        options.token = "nonsense";
        REFUSED(tw_fs_open(place, &options), EINVAL);
    }
}
