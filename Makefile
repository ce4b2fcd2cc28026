# make run        a tour: a filesystem is mounted and worked on, through a power cut; what that cost
# make run-block  a tour: a volume as a block device with an ext4 on it; what happened underneath
# make run-replica  a tour: two replicas of a volume, through kills, a promotion and a fence
# make run-cluster  a tour: two clients of a shared filesystem, through a kill of its server
# make run-journal  a tour: a database on a client's journal, without its server, and through a kill of the client
# make test       everything that is tested by itself, in minutes; how long each part took
# make test-long  the same, the benchmarks' tests and what takes long; campaigns of crashes are LONG (20) times as large,
#                 from fresh seeds
# make test-ceph  devices, contents of files and volumes on a real Ceph cluster
# make check      formatting, lints, documentation, the rules of crates/tidy
# make soak       16 clients on a volume that is nearly full, killed now and then, for an hour; all is verified
# make python     the package for Python
# make build      the program, and its benchmarks (thalweg bench), in target/release
# make build-ceph  the same, with volumes on a Ceph cluster
# make bench-rivals  the same; the benchmarks measure other engines too
# make setup      what the others need from the system

CARGO ?= cargo
LONG ?= 20

# Incremental compilation makes the first one a quarter longer.
ifeq ($(wildcard $(or $(CARGO_TARGET_DIR),target)/debug/incremental),)
test check: export CARGO_INCREMENTAL ?= 0
endif

.PHONY: test-ceph bench-rivals build-ceph run run-block run-replica run-cluster run-journal soak test test-long check setup build python

run: setup
	$(CARGO) build --profile tour -p thalweg
	scripts/tour

run-block: setup
	$(CARGO) build --profile tour -p thalweg
	scripts/tour-block

run-replica: setup
	$(CARGO) build --profile tour -p thalweg
	scripts/tour-replica

run-cluster: setup
	$(CARGO) build --profile tour -p thalweg
	scripts/tour-cluster

run-journal: setup
	$(CARGO) build --profile tour -p thalweg
	scripts/tour-journal

soak: setup build
	scripts/soak

test: setup
	@scripts/test-times --together 2 "$(CARGO) test --workspace --exclude thalweg-bench --tests"

test-long: setup
	THALWEG_LONG=$(LONG) $(CARGO) test --profile test-long --workspace --all-targets --no-fail-fast -- --include-ignored
	$(CARGO) test --profile test-long --workspace --doc
	@if test -e /usr/include/rocksdb/c.h -a -e /usr/include/leveldb/c.h -a -e /usr/include/sqlite3.h; then \
	    $(CARGO) test --profile test-long -p thalweg-bench --features rivals --lib; \
	else echo "SKIPPED: other engines; make bench-rivals installs them"; fi

# On a real cluster. THALWEG_MINI_CLUSTER names the program that starts one.
test-ceph:
	@scripts/setup ceph
	$(CARGO) clippy -p thalweg-rados -p thalweg -p thalweg-bench --features thalweg/librados,thalweg-bench/librados --all-targets -- -D warnings
	$(CARGO) test -p thalweg-rados --features librados
	$(CARGO) test -p thalweg --features librados --bins --test cli -- ceph devices

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps
# Alone it compiles some dependencies otherwise; in `make check test` the second part runs it.
ifeq ($(filter test,$(MAKECMDGOALS)),)
	$(CARGO) test -p thalweg-tidy
endif

# The wheel for Python, in target/wheels. Its tools come from the network.
python: setup
	python3 -m venv target/python
	target/python/bin/pip install --quiet "maturin>=1.9,<2"
	target/python/bin/maturin build --release --manifest-path crates/python/Cargo.toml --out target/wheels

build:
	$(CARGO) build --release -p thalweg -p thalweg-bench

build-ceph:
	@scripts/setup ceph
	$(CARGO) build --release -p thalweg -p thalweg-bench --features thalweg/librados,thalweg-bench/librados

setup:
	@scripts/setup

# RocksDB, LevelDB and SQLite come from the system; LMDB and redb are built.
bench-rivals:
	@scripts/setup rivals
	$(CARGO) build --release -p thalweg -p thalweg-bench --features thalweg-bench/rivals
