/* DeviceIoControl for fio under Wine, which lacks IOCTL_DISK_GET_LENGTH_INFO: the size of a raw disk is found
 * by reads at growing offsets, in whole sectors. All other requests go to Windows. */
#include <windows.h>
#include <winioctl.h>

static BOOL readable(HANDLE disk, LONGLONG offset)
{
    static char sector[512] __attribute__((aligned(4096)));
    OVERLAPPED place = {0};
    DWORD count = 0;
    place.Offset = (DWORD)offset;
    place.OffsetHigh = (DWORD)(offset >> 32);
    place.hEvent = CreateEventA(NULL, TRUE, FALSE, NULL);
    BOOL done = ReadFile(disk, sector, sizeof(sector), &count, &place);
    if (!done && GetLastError() == ERROR_IO_PENDING)
        done = GetOverlappedResult(disk, &place, &count, TRUE);
    CloseHandle(place.hEvent);
    return done && count == sizeof(sector);
}

BOOL WINAPI fio_DeviceIoControl(HANDLE disk, DWORD code, LPVOID in, DWORD in_size, LPVOID out, DWORD out_size,
                                LPDWORD returned, LPOVERLAPPED overlapped)
{
    if (code != IOCTL_DISK_GET_LENGTH_INFO)
        return DeviceIoControl(disk, code, in, in_size, out, out_size, returned, overlapped);
    LONGLONG low = 0, high = 1LL << 40; /* sectors; `low` of them are readable */
    while (low < high) {
        LONGLONG middle = low + (high - low) / 2;
        if (readable(disk, middle * 512))
            low = middle + 1;
        else
            high = middle;
    }
    ((GET_LENGTH_INFORMATION *)out)->Length.QuadPart = low * 512;
    *returned = sizeof(GET_LENGTH_INFORMATION);
    return low > 0;
}

BOOL(WINAPI *__imp_fio_DeviceIoControl)(HANDLE, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPDWORD, LPOVERLAPPED) = fio_DeviceIoControl;
