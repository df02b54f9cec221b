/*
 * Stores a page and its picture in a store, reads them, and closes the store.
 *
 * Run: pages FILE
 * Build: cc pages.c -I include -L DIRECTORY -lnectary -o pages
 */
#include <nectary.h>

#include <stdio.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, nectary_last_error());
    return 1;
}

/* Returns the body of a file that is not in the store. A real program would fetch it from the origin. */
static const char *fetch(const char *name)
{
    return strstr(name, ".html") ? "<img src=flower.png>" : "the picture";
}

/* Prints a file from the store. Fetches and stores it if it is absent. */
static int show(nectary_store *store, const char *name)
{
    const void *data;
    size_t length;
    int code = nectary_read_file(store, name, &data, &length);
    if (code == NECTARY_ABSENT) {
        const char *body = fetch(name);
        printf("%s: fetched\n", name);
        return nectary_write_file(store, name, body, strlen(body)) == NECTARY_OK ? 0 : failed("write");
    }
    if (code != NECTARY_OK)
        return failed("read");
    printf("%s: %.*s\n", name, (int)length, (const char *)data);
    return nectary_done_read_file(store, data) == NECTARY_OK ? 0 : failed("done");
}

int main(int count, char **arguments)
{
    const char *page = "http://example.org/flower.html";
    const char *picture = "http://example.org/flower.png";
    const char *film = "http://example.org/flower.mpg";
    nectary_store *store;

    if (count != 2) {
        fprintf(stderr, "usage: pages FILE\n");
        return 2;
    }
    if (nectary_open(arguments[1], 64 << 20, 16 << 20, &store) != NECTARY_OK)
        return failed("open");
    for (int round = 0; round < 2; round++)
        if (show(store, page) || show(store, picture))
            return 1;
    if (nectary_collocate_files(store, page, picture) != NECTARY_OK)
        return failed("collocate");
    if (nectary_write_nomem_file(store, film, "a long film", 11) != NECTARY_OK)
        return failed("write");
    if (nectary_delete_file(store, film) != NECTARY_OK)
        return failed("delete");
    return nectary_close(store) == NECTARY_OK ? 0 : failed("close");
}
