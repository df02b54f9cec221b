/* misuse FILE: reads a file's bytes after it has given them back. AddressSanitizer must end this program. */
#include <nectary.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    /* The file is longer than the store keeps in one piece, so nectary_read_file allocates memory for its bytes. */
    size_t length = 9 << 20;
    char *body = malloc(length);
    nectary_store *store;
    const void *data;
    int code = NECTARY_BUSY;

    if (count != 2 || !body)
        return 2;
    memset(body, 'x', length);
    if (nectary_open(arguments[1], 64 << 20, 64 << 20, &store)) {
        fprintf(stderr, "%s\n", nectary_last_error());
        return 2;
    }
    /* On a slow disk the write may need several attempts. */
    for (int attempt = 0; attempt < 100 && code == NECTARY_BUSY; attempt++)
        code = nectary_write_file(store, "film", body, length);
    if (code || nectary_read_file(store, "film", &data, &length)) {
        fprintf(stderr, "%s\n", nectary_last_error());
        return 2;
    }
    free(body);
    if (((const char *)data)[length - 1] != 'x' || nectary_done_read_file(store, data) != NECTARY_OK)
        return 2;
    printf("read after it was given back: %c\n", ((volatile const char *)data)[length / 2]);
    return nectary_close(store);
}
