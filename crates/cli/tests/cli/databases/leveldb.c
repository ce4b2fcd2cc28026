/* A database of LevelDB behind a pipe: `put KEY VALUE`, `keys` and `check`, each answered with a line. It ends at the first error. */
#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *error;

static void fail_on_error(void) {
    if (error) {
        fprintf(stderr, "leveldb: %s\n", error);
        exit(1);
    }
}

/* Reads everything, with its checksums; prints the keys, if asked. */
static void scan(leveldb_t *db, int prints) {
    leveldb_readoptions_t *options = leveldb_readoptions_create();
    leveldb_readoptions_set_verify_checksums(options, 1);
    leveldb_iterator_t *at = leveldb_create_iterator(db, options);
    for (leveldb_iter_seek_to_first(at); leveldb_iter_valid(at); leveldb_iter_next(at)) {
        size_t length;
        const char *key = leveldb_iter_key(at, &length);
        if (prints) printf("%.*s,", (int)length, key);
    }
    leveldb_iter_get_error(at, &error);
    fail_on_error();
    puts(prints ? "" : "clean");
    leveldb_iter_destroy(at);
    leveldb_readoptions_destroy(options);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    leveldb_options_t *options = leveldb_options_create();
    leveldb_options_set_create_if_missing(options, 1);
    leveldb_options_set_paranoid_checks(options, 1);
    /* The least that it takes: a log ends and a table begins often. */
    leveldb_options_set_write_buffer_size(options, 64 << 10);
    leveldb_t *db = leveldb_open(options, arguments[1], &error);
    fail_on_error();
    leveldb_writeoptions_t *synced = leveldb_writeoptions_create();
    leveldb_writeoptions_set_sync(synced, 1);
    char line[1000];
    while (fgets(line, sizeof line, stdin)) {
        char *verb = strtok(line, " \n"), *key = strtok(NULL, " \n"), *value = strtok(NULL, " \n");
        if (verb && value && !strcmp(verb, "put")) {
            leveldb_put(db, synced, key, strlen(key), value, strlen(value), &error);
            fail_on_error();
            puts("done");
        } else if (verb && (!strcmp(verb, "keys") || !strcmp(verb, "check"))) {
            scan(db, !strcmp(verb, "keys"));
        } else {
            return 2;
        }
        fflush(stdout);
    }
    leveldb_close(db);
    return 0;
}
