/* Print the argument words, each in its own line and in hexadecimal; with -exit CODE, end with that code. With
 * -flood BYTES, print that many bytes. With -sleep SECONDS, wait. */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words)
{
    long long value = count > 2 ? strtoll(words[2], NULL, 0) : 0;
    if (count > 2 && !strcmp(words[1], "-exit"))
        ExitProcess((UINT)value);
    if (count > 2 && !strcmp(words[1], "-sleep")) {
        Sleep((DWORD)value * 1000);
        return 0;
    }
    if (count > 2 && !strcmp(words[1], "-flood")) {
        for (; value > 0; value--)
            putchar('x');
        return 0;
    }
    for (int index = 1; index < count; index++) {
        for (const char *byte = words[index]; *byte; byte++)
            printf("%02x", (unsigned char)*byte);
        printf("\n");
    }
    return 0;
}
