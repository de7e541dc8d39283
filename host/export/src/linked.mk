# make clean && make check LINKED=1: link the weights as an object file (GNU ld) instead of reading them at run time.
OBJCOPY ?= objcopy
ifdef LINKED
override CFLAGS += -DMODEL_WEIGHTS_LINKED
OBJECTS += @PREFIX@_weights.o
endif

@PREFIX@_weights.o: @PREFIX@_weights.bin
	$(LD) -r -b binary -z noexecstack -o $@ $<
	$(OBJCOPY) --set-section-alignment .data=64 $@
	$(OBJCOPY) --rename-section .data=.rodata,alloc,load,readonly,data,contents $@

