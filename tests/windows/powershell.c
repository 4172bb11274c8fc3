/* Stand-in for powershell.exe, whose stub in Wine prints nothing and ends with 0.
 *
 * It knows only the lines that C:\answers has a file for, named by the FNV-1a hash of the encoded command, and
 * prints the file. For any other line it ends with 1, as PowerShell does for one that it cannot parse. */
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    char path[64];
    unsigned long long hash = 14695981039346656037ull;
    const char *code = count > 2 && !strcmp(words[count - 2], "-EncodedCommand") ? words[count - 1] : "";
    for (; *code; code++)
        hash = (hash ^ (unsigned char)*code) * 1099511628211ull;
    snprintf(path, sizeof(path), "C:\\answers\\%016llx", hash);
    FILE *answer = fopen(path, "rb");
    if (!answer) {
        fprintf(stderr, "this stand-in does not know the line %016llx\r\n", hash);
        return 1;
    }
    char block[4096];
    for (size_t size; (size = fread(block, 1, sizeof(block), answer)) > 0;)
        fwrite(block, 1, size, stdout);
    return 0;
}
