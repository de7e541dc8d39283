
BscoresJ(gV
?аr?VвЁ>;зя>тMя>╘eь>х,ч>ZЎ╩>"╟>G'└>