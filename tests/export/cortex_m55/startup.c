/* Start on the board mps3-an547: vector table, floating-point unit, then the C library, which prints by semihosting. */
#include <stdint.h>

extern uint32_t stack_top;
int main(void);
void initialise_monitor_handles(void);
void exit(int code);
void _init(void);
void _fini(void);
void reset(void);
void fault(void);

void reset(void) {
    /* Full access to the coprocessors of the floating-point and vector unit (CPACR). */
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20;
    __asm volatile("dsb\n\tisb");
    initialise_monitor_handles();
    exit(main());
}

/* Nothing is constructed before main, or destroyed after it. */
void _init(void) {
}

void _fini(void) {
}

void fault(void) {
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &stack_top, (const void *)reset, (const void *)fault, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault,
};
