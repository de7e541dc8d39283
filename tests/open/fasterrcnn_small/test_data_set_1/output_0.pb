
BboxesJ ì½AŠŽwBŽb;BD}BÌZïAÉÆAÂõ9BêÜBÞ®Aov‰AèŠ8BS>²AB@JÛbBÄ$/B”ÙqB þñ?Œ½-BV3B
ÕEB¹°?Ó(|ARÄ4B±¸„Am½Ab”óA&û:BËÖfBˆo@$6sAÆB=B=M~BÈa&@¤&_BTÎ7BiiBDî–A¾Aì¹BR<,B