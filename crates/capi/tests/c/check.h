/* What the parts of the test program share. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thalweg.h"

/* What is tested now, for messages. */
extern const char *where;
extern tw_volume *volume;

#define CHECK(is, wanted)                                                                            \
    do {                                                                                             \
        long is_ = (long)(is), wanted_ = (long)(wanted);                                             \
        if (is_ != wanted_) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s is %ld, and not %ld (%s)\n", __FILE__, __LINE__, where,   \
                    #is, is_, wanted_, tw_error());                                                  \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

void put(uint64_t block, int byte);
int get(uint64_t block);
/* Runs a call in another thread. */
void elsewhere(void (*run)(void *), void *with);

/* In files.c: all calls on files. */
void files(const char *place, const char *token, const char *keys);
/* In forks.c. */
void forks(const char *place, int served, const char *empty);
void forks_with_files(const char *place, const char *token, const char *keys);
void orphan(void);
/* In stale.c. */
void stale_blocks(void);
void stale_keys(void);
void other_way(void);
void on_a_replica(void);

#endif
