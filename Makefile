# Everything that a user or contributor does, by one name each. `make run` and `make test` do all their set-up.
# Without make: `ci/setup run` installs it (as root), or names the package.

LISTEN ?= 127.0.0.1:8080
DATA   ?= nectary-data
SIZE   ?= 4G
MEMORY ?= 256M
# Files in a Debian pool never change under their name, and some mirrors give them no lifetime.
TTL    ?= /debian/pool/=7d
# More options for `make run` (see `nectary proxy --help`), and arguments for `make soak` and `make bench`.
ARGS   ?=

# Where rustup puts cargo, for shells that have not been started again since.
export PATH := $(PATH):$(HOME)/.cargo/bin

PACKAGES = deb rpm tarball

.PHONY: help run program $(PACKAGES) test quick check soak bench clean

help:
	@echo 'make run     a caching forward proxy on $(LISTEN), its store in ./$(DATA)'
	@echo 'make program builds the program that it runs, target/dist/nectary'
	@echo 'make deb     a Debian package; make rpm, make tarball: the others; all in target/package'
	@echo 'make test    every default check and test; the last line is the count'
	@echo 'make quick  the checks and tests of what has changed, and of what uses it; ARGS="--since REVISION"'
	@echo 'make check   the checks alone: formatting, lints, licences, dependencies, documents'
	@echo "make soak    long campaigns; ARGS='--seed 7 --rounds 100 --shard 0/4'"
	@echo "make bench   benchmarks beside nginx and Varnish; ARGS='memory'"
	@echo 'make clean   removes what was built; the store in ./$(DATA) stays'

run: program
	@mkdir -p $(DATA)
	target=$${CARGO_TARGET_DIR:-target}; exec $$target/dist/nectary proxy --listen $(LISTEN) \
	  --store $(DATA)/store --size $(SIZE) --memory $(MEMORY) --access-log $(DATA)/access.log --default-ttl '$(TTL)' $(ARGS)

# Line tables and symbols are four fifths of what is linked: they go into a file beside the program, where backtraces and
# debuggers find them.
program:
	@ci/setup run
	cargo build --profile dist --locked
	@cd $${CARGO_TARGET_DIR:-target}/dist && if objdump -h nectary | grep -q debug_line; then \
	  objcopy --only-keep-debug nectary nectary.debug && \
	  objcopy --strip-all --add-gnu-debuglink=nectary.debug nectary nectary.new && mv nectary.new nectary; fi

# PROGRAM=FILE packs another program than target/dist/nectary.
$(PACKAGES): $(if $(PROGRAM),,program)
	@ci/setup packages
	@PROGRAM=$(PROGRAM) packaging/make $@

# What only the tests need is installed during the build.
test:
	@ci/setup run
	@cargo xtask test --setup

quick:
	@ci/setup run
	@cargo xtask quick $(ARGS)

check:
	@ci/setup run
	@cargo xtask check

soak:
	@ci/setup test
	@cargo xtask soak $(ARGS)

bench:
	@ci/setup test
	@cargo xtask bench $(ARGS)

clean:
	cargo clean
