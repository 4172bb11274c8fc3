/* ptrace for User-mode Linux up to 6.12, preloaded by machine.py.
 *
 * Its buffer for the FPU's registers has 2,696 bytes, which ends before those of AMX. The kernel of
 * a CPU with AMX accepts only all registers ("ptrace set fp regs failed, errno = 14"), so add the
 * rest as the process has it. Without headers: tcc alone compiles it.
 */
typedef unsigned long size;
struct piece { char *bytes; size count; };
enum { GETREGSET = 0x4204, SETREGSET = 0x4205, NT_X86_XSTATE = 0x202 };

extern void *dlsym(void *, const char *);
extern void *memcpy(void *, const void *, size);

long ptrace(long request, long process, void *address, void *data)
{
    static long (*real)(long, ...);
    static char registers[65536];
    struct piece whole = { registers, sizeof registers }, *given = data;

    if (!real)
        real = dlsym((void *)-1, "ptrace"); /* RTLD_NEXT */
    if (request == SETREGSET && address == (void *)NT_X86_XSTATE
        && real(GETREGSET, process, address, &whole) == 0 && whole.count > given->count) {
        memcpy(registers, given->bytes, given->count);
        data = &whole;
    }
    return real(request, process, address, data);
}
